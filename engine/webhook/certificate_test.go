package webhook

import (
	"bytes"
	"context"
	"crypto/tls"
	"crypto/x509"
	"encoding/pem"
	"errors"
	"maps"
	"strings"
	"sync"
	"testing"
	"time"

	admissionregv1 "k8s.io/api/admissionregistration/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	clientgoscheme "k8s.io/client-go/kubernetes/scheme"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/fake"
	"sigs.k8s.io/controller-runtime/pkg/client/interceptor"
)

const day = 24 * time.Hour

// keeper is a cluster with a Secret and a webhook configuration, and a clock.
type keeper struct {
	*testing.T
	client client.WithWatch
	now    time.Time
}

func newKeeper(t *testing.T) *keeper {
	scheme := runtime.NewScheme()
	if err := clientgoscheme.AddToScheme(scheme); err != nil {
		t.Fatal(err)
	}
	config := &admissionregv1.ValidatingWebhookConfiguration{ObjectMeta: metav1.ObjectMeta{Name: "dovetail"}}
	config.Webhooks = []admissionregv1.ValidatingWebhook{{Name: "nodepools.dovetail.sh"}, {Name: "nodepolicies.dovetail.sh"}}
	return &keeper{
		T:      t,
		client: fake.NewClientBuilder().WithScheme(scheme).WithObjects(config, &corev1.Secret{ObjectMeta: metav1.ObjectMeta{Namespace: "system", Name: "certs"}}).Build(),
		now:    origin,
	}
}

// replica is one whose clock is ahead.
func (k *keeper) replica(ahead time.Duration) *Certificates {
	return NewCertificates(CertificateOptions{
		Reader: k.client, Writer: k.client, Namespace: "system", Service: "dovetail", Secret: "certs", Configuration: "dovetail",
		Now: func() time.Time { return k.now.Add(ahead) },
	})
}

func (k *keeper) keep(c *Certificates) string {
	k.Helper()
	done, err := c.Keep(k.Context())
	if err != nil {
		k.Fatal(err)
	}
	return done
}

func (k *keeper) secret() *corev1.Secret {
	k.Helper()
	var s corev1.Secret
	if err := k.client.Get(k.Context(), client.ObjectKey{Namespace: "system", Name: "certs"}, &s); err != nil {
		k.Fatal(err)
	}
	return &s
}

func (k *keeper) config() *admissionregv1.ValidatingWebhookConfiguration {
	k.Helper()
	var c admissionregv1.ValidatingWebhookConfiguration
	if err := k.client.Get(k.Context(), client.ObjectKey{Name: "dovetail"}, &c); err != nil {
		k.Fatal(err)
	}
	return &c
}

// accepts is what an API server with a clock that is ahead says of who serves c.
func (k *keeper) accepts(c *Certificates, ahead time.Duration) error {
	k.Helper()
	cert, err := c.Get(nil)
	if err != nil {
		return err
	}
	leaf, err := x509.ParseCertificate(cert.Certificate[0])
	if err != nil {
		return err
	}
	for _, w := range k.config().Webhooks {
		roots := x509.NewCertPool()
		roots.AppendCertsFromPEM(w.ClientConfig.CABundle)
		for _, name := range []string{"dovetail.system.svc", "localhost"} {
			if _, err := leaf.Verify(x509.VerifyOptions{DNSName: name, Roots: roots, CurrentTime: k.now.Add(ahead)}); err != nil {
				return err
			}
		}
	}
	return nil
}

func (k *keeper) wantAccepted(c *Certificates) {
	k.Helper()
	for _, ahead := range []time.Duration{-12 * time.Hour, 0, 12 * time.Hour} {
		if err := k.accepts(c, ahead); err != nil {
			k.Errorf("an API server whose clock is %s ahead: %v", ahead, err)
		}
	}
}

// made are the contents of Secrets of two clusters. Making keys takes long.
var made = sync.OnceValue(func() (out [2]map[string][]byte) {
	c := NewCertificates(CertificateOptions{Namespace: "system", Service: "dovetail", Now: func() time.Time { return origin }})
	for i := range out {
		var s corev1.Secret
		if _, err := c.renew(&s); err != nil {
			panic(err)
		}
		out[i] = s.Data
	}
	return out
})

var origin = time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC)

// begin has a first replica that serves what was made in cluster 0.
func (k *keeper) begin() *Certificates {
	k.Helper()
	s := k.secret()
	s.Data = maps.Clone(made()[0])
	k.must(k.client.Update(k.Context(), s))
	c := k.replica(0)
	if done := k.keep(c); done != "" {
		k.Fatalf("of what another replica made: %q, want nothing to do", done)
	}
	k.wantAccepted(c)
	return c
}

func TestCertificates(t *testing.T) {
	const both, one, none = "made a certificate authority and a certificate", "made a certificate:", ""
	tests := map[string]struct {
		// change comes after a first replica has made certificates, and before a second
		// looks.
		change func(*keeper)
		ahead  time.Duration
		want   string
	}{
		"well":                              {func(*keeper) {}, 0, none},
		"a year later":                      {func(k *keeper) { k.now = k.now.Add(366 * day) }, 0, one},
		"soon at its end":                   {func(k *keeper) { k.now = k.now.Add(300 * day) }, 0, one},
		"not so soon":                       {func(k *keeper) { k.now = k.now.Add(200 * day) }, 0, none},
		"the authority at its end":          {func(k *keeper) { k.now = k.now.Add(3600 * day) }, 0, both},
		"the authority after its end":       {func(k *keeper) { k.now = k.now.Add(4000 * day) }, 0, both},
		"a clock a little ahead":            {func(*keeper) {}, 12 * time.Hour, none},
		"a clock a little behind":           {func(*keeper) {}, -12 * time.Hour, none},
		"made by a clock far ahead of ours": {func(k *keeper) { k.now = k.now.Add(-3 * day) }, 0, both},
		"the Secret emptied": {func(k *keeper) {
			s := k.secret()
			s.Data = nil
			k.must(k.client.Update(k.Context(), s))
		}, 0, both},
		"the Secret deleted": {func(k *keeper) { k.must(k.client.Delete(k.Context(), k.secret())) }, 0, both},
		"garbage in the Secret": {func(k *keeper) {
			s := k.secret()
			for key := range s.Data {
				s.Data[key] = []byte("garbage")
			}
			k.must(k.client.Update(k.Context(), s))
		}, 0, both},
		"a certificate of another authority": {func(k *keeper) {
			s, other := k.secret(), made()[1]
			s.Data[certKey], s.Data[keyKey] = other[certKey], other[keyKey]
			k.must(k.client.Update(k.Context(), s))
		}, 0, one},
		"a key of another certificate": {func(k *keeper) {
			s, other := k.secret(), made()[1]
			s.Data[keyKey] = other[keyKey]
			k.must(k.client.Update(k.Context(), s))
		}, 0, one},
		"a key of another authority": {func(k *keeper) {
			s, other := k.secret(), made()[1]
			s.Data[caKeyKey] = other[caKeyKey]
			k.must(k.client.Update(k.Context(), s))
		}, 0, both},
		"a certificate in place of the authority": {func(k *keeper) {
			s := k.secret()
			s.Data[caCertKey], s.Data[caKeyKey] = s.Data[certKey], s.Data[keyKey]
			k.must(k.client.Update(k.Context(), s))
		}, 0, both},
		"a Service of another name": {func(k *keeper) {
			c := NewCertificates(CertificateOptions{Reader: k.client, Writer: k.client, Namespace: "system", Service: "old", Secret: "certs", Now: func() time.Time { return k.now }})
			k.keep(c)
		}, 0, one},
		"a configuration that was made anew": {func(k *keeper) {
			c := k.config()
			for i := range c.Webhooks {
				c.Webhooks[i].ClientConfig.CABundle = nil
			}
			k.must(k.client.Update(k.Context(), c))
		}, 0, none},
		"another authority in the configuration": {func(k *keeper) {
			c, other := k.config(), made()[1]
			c.Webhooks[1].ClientConfig.CABundle = other[caCertKey]
			k.must(k.client.Update(k.Context(), c))
		}, 0, none},
	}
	for name, tt := range tests {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			k := newKeeper(t)
			first := k.begin()
			tt.change(k)
			second := k.replica(tt.ahead)
			if done := k.keep(second); !strings.HasPrefix(done, tt.want) || tt.want == "" && done != "" {
				t.Errorf("done: %q, want %q", done, tt.want)
			}
			k.wantAccepted(second)
			before := k.secret().ResourceVersion
			for _, c := range []*Certificates{first, second} {
				if done := k.keep(c); done != "" {
					t.Errorf("another look: %q, want nothing to do", done)
				}
				k.wantAccepted(c)
			}
			if k.secret().ResourceVersion != before {
				t.Error("the Secret was written though nothing was to do")
			}
		})
	}
}

func (k *keeper) must(err error) {
	k.Helper()
	if err != nil {
		k.Fatal(err)
	}
}

// TestCertificates_rotation has one replica change the authority while another still serves
// what it has: API servers must accept both.
func TestCertificates_rotation(t *testing.T) {
	k := newKeeper(t)
	first, second := k.begin(), k.replica(0)
	var ends []time.Time
	second.opts.Served = func(end time.Time) { ends = append(ends, end) }
	k.now = k.now.Add(3560 * day) // the authority has 90 days left, the certificate none
	k.keep(first)
	k.keep(second)
	k.now = k.now.Add(5 * day)
	if done := k.keep(second); !strings.Contains(done, "authority") {
		t.Fatalf("done: %q, want a new authority", done)
	}
	k.wantAccepted(first)
	k.wantAccepted(second)
	a, _ := first.Get(nil)
	b, _ := second.Get(nil)
	if bytes.Equal(a.Certificate[0], b.Certificate[0]) {
		t.Fatal("both serve one certificate: the test shows nothing")
	}
	bundle, n := k.config().Webhooks[0].ClientConfig.CABundle, 0
	for block, rest := pem.Decode(bundle); block != nil; block, rest = pem.Decode(rest) {
		n++
	}
	if n != 2 {
		t.Errorf("%d authorities in the configuration, want the new one and the one before", n)
	}
	if done := k.keep(first); done != "" {
		t.Errorf("the other replica: %q, want it to take over what is there", done)
	}
	a, _ = first.Get(nil)
	if !bytes.Equal(a.Certificate[0], b.Certificate[0]) {
		t.Error("the replicas serve different certificates")
	}
	if n := len(ends); n == 0 || !ends[n-1].Equal(a.Leaf.NotAfter) {
		t.Errorf("ends told: %v, want %s as the last", ends, a.Leaf.NotAfter)
	}
}

// TestCertificates_together has replicas begin at the same time with an empty Secret.
func TestCertificates_together(t *testing.T) {
	k := newKeeper(t)
	replicas := []*Certificates{k.replica(0), k.replica(0), k.replica(0)}
	var wg sync.WaitGroup
	for _, c := range replicas {
		wg.Go(func() {
			for range 5 { // as Start does
				if _, err := c.Keep(t.Context()); err == nil {
					return
				}
			}
			t.Error("no success")
		})
	}
	wg.Wait()
	for _, c := range replicas {
		k.keep(c)
		k.wantAccepted(c)
	}
}

func TestCertificates_faults(t *testing.T) {
	forbidden := apierrors.NewForbidden(schema.GroupResource{Resource: "secrets"}, "certs", errors.New("no"))
	tests := map[string]struct {
		funcs  interceptor.Funcs
		change func(*keeper)
		want   string
		serves bool
	}{
		"a Secret that may not be written": {
			funcs: interceptor.Funcs{Update: func(_ context.Context, c client.WithWatch, o client.Object, _ ...client.UpdateOption) error {
				return forbidden
			}},
			want: "secret system/certs:",
		},
		"a Secret that may not be read": {
			funcs: interceptor.Funcs{Get: func(_ context.Context, c client.WithWatch, _ client.ObjectKey, o client.Object, _ ...client.GetOption) error {
				return forbidden
			}},
			want: "secret system/certs:",
		},
		"a configuration that is not there": {
			change: func(k *keeper) { k.must(k.client.Delete(k.Context(), k.config())) },
			want:   "validatingwebhookconfiguration dovetail:", serves: true,
		},
		"a configuration that may not be written": {
			funcs: interceptor.Funcs{Patch: func(context.Context, client.WithWatch, client.Object, client.Patch, ...client.PatchOption) error {
				return forbidden
			}},
			want: "validatingwebhookconfiguration dovetail:", serves: true,
		},
	}
	for name, tt := range tests {
		t.Run(name, func(t *testing.T) {
			k := newKeeper(t)
			if tt.change != nil {
				tt.change(k)
			}
			k.client = interceptor.NewClient(k.client, tt.funcs)
			c := k.replica(0)
			_, err := c.Keep(t.Context())
			if err == nil || !strings.Contains(err.Error(), tt.want) {
				t.Errorf("error %v, want %q", err, tt.want)
			}
			if got := c.Ready() == nil; got != tt.serves {
				t.Errorf("serves: %t, want %t", got, tt.serves)
			}
		})
	}
}

// TestCertificates_Start serves, and goes on after a fault.
func TestCertificates_Start(t *testing.T) {
	k := newKeeper(t)
	k.now = time.Now()
	failed := false
	k.client = interceptor.NewClient(k.client, interceptor.Funcs{Update: func(ctx context.Context, c client.WithWatch, o client.Object, opts ...client.UpdateOption) error {
		if !failed {
			failed = true
			return apierrors.NewInternalError(errors.New("not now"))
		}
		return c.Update(ctx, o, opts...)
	}})
	c := k.replica(0)
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan error)
	go func() { ended <- c.Start(ctx) }()
	listener, err := tls.Listen("tcp", "127.0.0.1:0", &tls.Config{GetCertificate: c.Get})
	if err != nil {
		t.Fatal(err)
	}
	go func() {
		for {
			conn, err := listener.Accept()
			if err != nil {
				return
			}
			_ = conn.(*tls.Conn).HandshakeContext(ctx)
			_ = conn.Close()
		}
	}()
	var last error
	for range 200 {
		roots := x509.NewCertPool()
		roots.AppendCertsFromPEM(k.config().Webhooks[0].ClientConfig.CABundle)
		var conn *tls.Conn
		if conn, last = tls.Dial("tcp", listener.Addr().String(), &tls.Config{RootCAs: roots, ServerName: "dovetail.system.svc"}); last == nil {
			_ = conn.Close()
			break
		}
		time.Sleep(50 * time.Millisecond)
	}
	if last != nil || !failed {
		t.Errorf("no connection: %v (a write failed: %t)", last, failed)
	}
	cancel()
	_ = listener.Close()
	if err := <-ended; err != nil {
		t.Error(err)
	}
}
