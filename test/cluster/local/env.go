package local

import (
	"context"
	"fmt"
	"maps"
	"net"
	"os"
	"regexp"
	"slices"
	"strconv"
	"strings"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// environment returns the variables of a container: those that every container gets,
// those of its envFrom, and its env, of which later ones win and may name earlier ones.
func (r *run) environment(ctx context.Context, container *corev1.Container) (map[string]string, error) {
	host, port, err := net.SplitHostPort(r.node.api)
	if err != nil {
		return nil, err
	}
	env := map[string]string{
		"PATH": os.Getenv("PATH"), "HOME": "/", "HOSTNAME": r.pod.Name,
		"KUBERNETES_SERVICE_HOST": host, "KUBERNETES_SERVICE_PORT": port, "KUBERNETES_SERVICE_PORT_HTTPS": port,
	}
	for _, from := range container.EnvFrom {
		values, err := r.envFrom(ctx, from)
		if err != nil {
			return nil, err
		}
		for key, value := range values {
			env[from.Prefix+key] = value
		}
	}
	for _, variable := range container.Env {
		if variable.ValueFrom == nil {
			env[variable.Name] = expand(variable.Value, env)
			continue
		}
		value, ok, err := r.valueFrom(ctx, variable.ValueFrom, container.Name)
		if err != nil {
			return nil, fmt.Errorf("variable %s: %w", variable.Name, err)
		}
		if ok {
			env[variable.Name] = value
		}
	}
	return env, nil
}

func (r *run) envFrom(ctx context.Context, from corev1.EnvFromSource) (map[string]string, error) {
	files := map[string][]byte{}
	var err error
	switch {
	case from.ConfigMapRef != nil:
		err = r.configMapFiles(ctx, files, from.ConfigMapRef.Name, nil, from.ConfigMapRef.Optional)
	case from.SecretRef != nil:
		err = r.secretFiles(ctx, files, from.SecretRef.Name, nil, from.SecretRef.Optional)
	}
	values := map[string]string{}
	for key, value := range files {
		values[key] = string(value)
	}
	return values, err
}

// valueFrom returns the value of a variable, and false if it is optional and missing.
func (r *run) valueFrom(ctx context.Context, source *corev1.EnvVarSource, container string) (string, bool, error) {
	key := func(data map[string][]byte, key string, optional *bool) (string, bool, error) {
		value, ok := data[key]
		if !ok && (optional == nil || !*optional) {
			return "", false, fmt.Errorf("no key %q", key)
		}
		return string(value), ok, nil
	}
	switch {
	case source.FieldRef != nil:
		value, err := r.field(source.FieldRef.FieldPath)
		return value, err == nil, err
	case source.ResourceFieldRef != nil:
		value, err := r.resource(source.ResourceFieldRef, container)
		return value, err == nil, err
	case source.SecretKeyRef != nil:
		ref := source.SecretKeyRef
		secret, err := r.node.client.CoreV1().Secrets(r.pod.Namespace).Get(ctx, ref.Name, metav1.GetOptions{})
		if err != nil {
			return "", false, optionally(err, ref.Optional)
		}
		return key(secret.Data, ref.Key, ref.Optional)
	case source.ConfigMapKeyRef != nil:
		ref := source.ConfigMapKeyRef
		config, err := r.node.client.CoreV1().ConfigMaps(r.pod.Namespace).Get(ctx, ref.Name, metav1.GetOptions{})
		if err != nil {
			return "", false, optionally(err, ref.Optional)
		}
		data := map[string][]byte{}
		for name, value := range config.Data {
			data[name] = []byte(value)
		}
		return key(data, ref.Key, ref.Optional)
	default:
		return "", false, fmt.Errorf("a source that the local node does not have")
	}
}

// optionally drops the error of a missing object that need not exist.
func optionally(err error, optional *bool) error {
	if apierrors.IsNotFound(err) && optional != nil && *optional {
		return nil
	}
	return err
}

var subscript = regexp.MustCompile(`^metadata\.(labels|annotations)\['([^']+)'\]$`)

// field is a field of the pod, as the downward API has it.
func (r *run) field(path string) (string, error) {
	if m := subscript.FindStringSubmatch(path); m != nil {
		if m[1] == "labels" {
			return r.pod.Labels[m[2]], nil
		}
		return r.pod.Annotations[m[2]], nil
	}
	lines := func(values map[string]string) string {
		var text strings.Builder
		for _, key := range slices.Sorted(maps.Keys(values)) {
			fmt.Fprintf(&text, "%s=%q\n", key, values[key])
		}
		return text.String()
	}
	switch path {
	case "metadata.name":
		return r.pod.Name, nil
	case "metadata.namespace":
		return r.pod.Namespace, nil
	case "metadata.uid":
		return string(r.pod.UID), nil
	case "metadata.labels":
		return lines(r.pod.Labels), nil
	case "metadata.annotations":
		return lines(r.pod.Annotations), nil
	case "spec.nodeName":
		return r.pod.Spec.NodeName, nil
	case "spec.serviceAccountName":
		return r.pod.Spec.ServiceAccountName, nil
	case "status.hostIP", "status.podIP", "status.hostIPs", "status.podIPs":
		return loopback, nil
	default:
		return "", fmt.Errorf("field %q cannot be referred to", path)
	}
}

// resource is a request or a limit of a container, in units of the divisor, rounded up.
// A limit that is not set is what the node has.
func (r *run) resource(ref *corev1.ResourceFieldSelector, container string) (string, error) {
	if ref.ContainerName != "" {
		container = ref.ContainerName
	}
	all := slices.Concat(r.pod.Spec.InitContainers, r.pod.Spec.Containers)
	i := slices.IndexFunc(all, func(c corev1.Container) bool { return c.Name == container })
	if i < 0 {
		return "", fmt.Errorf("resource %s of container %q: no such container", ref.Resource, container)
	}
	kind, name, _ := strings.Cut(ref.Resource, ".")
	list := all[i].Resources.Requests
	if kind == "limits" {
		list = all[i].Resources.Limits
	}
	quantity, ok := list[corev1.ResourceName(name)]
	if !ok && kind == "limits" {
		quantity = map[string]resource.Quantity{"cpu": resource.MustParse("64"), "memory": resource.MustParse("256Gi")}[name]
	}
	divisor := ref.Divisor
	if divisor.IsZero() {
		divisor = resource.MustParse("1")
	}
	if name == string(corev1.ResourceCPU) {
		return strconv.FormatInt(ceil(quantity.MilliValue(), divisor.MilliValue()), 10), nil
	}
	return strconv.FormatInt(ceil(quantity.Value(), divisor.Value()), 10), nil
}

func ceil(a, b int64) int64 { return (a + b - 1) / b }

var reference = regexp.MustCompile(`\$\$|\$\(([A-Za-z_.-][A-Za-z0-9_.-]*)\)`)

// expand replaces $(NAME) by a variable's value. $$ is a dollar, and what names no
// variable stays.
func expand(text string, env map[string]string) string {
	return reference.ReplaceAllStringFunc(text, func(found string) string {
		if found == "$$" {
			return "$"
		}
		if value, ok := env[found[2:len(found)-1]]; ok {
			return value
		}
		return found
	})
}
