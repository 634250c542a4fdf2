// Package observe tells people and machines what was decided: metrics under the names that
// existing dashboards know, and Kubernetes events that do not repeat themselves.
package observe
