package local

import (
	"context"
	"crypto/tls"
	"fmt"
	"net"
	"net/http"
	"strconv"
	"strings"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/util/intstr"
)

// probe runs the probes of a container that was just started, until ctx ends. It returns
// true if the container has to be restarted.
func (r *run) probe(ctx context.Context, container *corev1.Container) bool {
	if !r.watch(ctx, container, container.StartupProbe, func(ok bool) bool { return ok }) {
		return ctx.Err() == nil
	}
	r.set(container.Name, func(s *state) { s.up = true })
	var group sync.WaitGroup
	defer group.Wait()
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	group.Go(func() {
		if container.ReadinessProbe == nil {
			r.set(container.Name, func(s *state) { s.ready = true })
			return
		}
		r.watch(ctx, container, container.ReadinessProbe, func(ok bool) bool {
			if r.get(container.Name).ready != ok {
				r.set(container.Name, func(s *state) { s.ready = ok && !r.isStopping() })
			}
			return false
		})
	})
	if container.LivenessProbe == nil {
		<-ctx.Done()
		return false
	}
	failed := false
	r.watch(ctx, container, container.LivenessProbe, func(ok bool) bool {
		failed = !ok
		return failed
	})
	return failed && ctx.Err() == nil
}

// watch probes again and again, and tells about every result that has reached its
// threshold. It returns true as soon as told returns true, at once if there is no probe,
// and false if ctx ends or a startup probe has failed.
func (r *run) watch(ctx context.Context, container *corev1.Container, probe *corev1.Probe, told func(ok bool) bool) bool {
	if probe == nil {
		return told(true)
	}
	seconds := func(n, otherwise int32) time.Duration {
		if n <= 0 {
			n = otherwise
		}
		return time.Duration(n) * time.Second
	}
	wait := seconds(probe.InitialDelaySeconds, 0)
	successes, failures := int32(0), int32(0)
	for {
		select {
		case <-ctx.Done():
			return false
		case <-time.After(wait):
		}
		wait = seconds(probe.PeriodSeconds, 10)
		attempt, cancel := context.WithTimeout(ctx, seconds(probe.TimeoutSeconds, 1))
		err := check(attempt, container, probe)
		cancel()
		if ctx.Err() != nil {
			return false
		}
		if err == nil {
			successes, failures = successes+1, 0
			if successes >= max(1, probe.SuccessThreshold) && told(true) {
				return true
			}
			continue
		}
		successes, failures = 0, failures+1
		if failures >= max(1, probe.FailureThreshold) {
			if told(false) {
				return true
			}
			if probe == container.StartupProbe {
				return false
			}
		}
		if probe == container.ReadinessProbe && !r.get(container.Name).ready {
			// A program that starts is asked more often than its chart says, for tests' sake.
			wait = min(wait, time.Second)
		}
	}
}

// check probes once.
func check(ctx context.Context, container *corev1.Container, probe *corev1.Probe) error {
	switch {
	case probe.HTTPGet != nil:
		get := probe.HTTPGet
		number, err := portNumber(container, get.Port)
		if err != nil {
			return err
		}
		scheme := strings.ToLower(string(get.Scheme))
		if scheme == "" {
			scheme = "http"
		}
		url := fmt.Sprintf("%s://%s/%s", scheme, net.JoinHostPort(loopback, number), strings.TrimPrefix(get.Path, "/"))
		request, err := http.NewRequestWithContext(ctx, http.MethodGet, url, http.NoBody)
		if err != nil {
			return err
		}
		for _, header := range get.HTTPHeaders {
			request.Header.Add(header.Name, header.Value)
		}
		// As a kubelet, it checks no certificates.
		transport := &http.Transport{DisableKeepAlives: true, TLSClientConfig: &tls.Config{InsecureSkipVerify: true}} //nolint:gosec // see above
		response, err := (&http.Client{Transport: transport}).Do(request)
		if err != nil {
			return err
		}
		defer response.Body.Close()
		if response.StatusCode < 200 || response.StatusCode >= 400 {
			return fmt.Errorf("probe %s: %s", url, response.Status)
		}
		return nil
	case probe.TCPSocket != nil:
		number, err := portNumber(container, probe.TCPSocket.Port)
		if err != nil {
			return err
		}
		connection, err := (&net.Dialer{}).DialContext(ctx, "tcp", net.JoinHostPort(loopback, number))
		if err != nil {
			return err
		}
		return connection.Close()
	default:
		return nil
	}
}

func portNumber(container *corev1.Container, port intstr.IntOrString) (string, error) {
	if port.Type == intstr.Int {
		return strconv.Itoa(port.IntValue()), nil
	}
	for _, has := range container.Ports {
		if has.Name == port.StrVal {
			return strconv.Itoa(int(has.ContainerPort)), nil
		}
	}
	return "", fmt.Errorf("container %q has no port %q", container.Name, port.StrVal)
}
