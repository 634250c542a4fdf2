// Command controlplane is a whole Kubernetes control plane in one program:
// etcd, kube-apiserver, kube-controller-manager and kube-scheduler, each
// started as a process of its own. The name the program was started under says
// which component it is (so that symlinks serve envtest), else its first
// argument does.
//
// It lives in a module of its own because k8s.io/kubernetes needs its staging
// modules replaced, and nothing else should be built against those.
package main

import (
	"fmt"
	"os"
	"path/filepath"

	"github.com/spf13/cobra"
	"go.etcd.io/etcd/server/v3/etcdmain"
	"k8s.io/component-base/cli"
	_ "k8s.io/component-base/metrics/prometheus/clientgo"
	_ "k8s.io/component-base/metrics/prometheus/version"
	apiserver "k8s.io/kubernetes/cmd/kube-apiserver/app"
	controllermanager "k8s.io/kubernetes/cmd/kube-controller-manager/app"
	scheduler "k8s.io/kubernetes/cmd/kube-scheduler/app"
)

// components is what this program can be, by the upstream program's name.
var components = map[string]func() int{
	"etcd":                    runEtcd,
	"kube-apiserver":          run(apiserver.NewAPIServerCommand),
	"kube-controller-manager": run(controllermanager.NewControllerManagerCommand),
	"kube-scheduler":          run(func() *cobra.Command { return scheduler.NewSchedulerCommand() }),
}

func main() {
	start, ok := components[filepath.Base(os.Args[0])]
	if !ok && len(os.Args) > 1 {
		if start, ok = components[os.Args[1]]; ok {
			os.Args = os.Args[1:]
		}
	}
	if !ok {
		fmt.Fprintln(os.Stderr, "usage: controlplane etcd|kube-apiserver|kube-controller-manager|kube-scheduler [flags]")
		os.Exit(2)
	}
	os.Exit(start())
}

func run(command func() *cobra.Command) func() int {
	return func() int { return cli.Run(command()) }
}

// runEtcd ends the process itself when etcd stops with an error.
func runEtcd() int {
	etcdmain.Main(os.Args)
	return 0
}
