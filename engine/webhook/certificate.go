package webhook

import (
	"bytes"
	"context"
	"crypto/tls"
	"crypto/x509"
	"encoding/pem"
	"errors"
	"fmt"
	"sync/atomic"
	"time"

	"github.com/open-policy-agent/cert-controller/pkg/rotator"
	admissionregv1 "k8s.io/api/admissionregistration/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"
)

// Keys of the Secret. The certificate of the authority may be followed by the one before.
const (
	caCertKey = "ca.crt"
	caKeyKey  = "ca.key"
	certKey   = corev1.TLSCertKey
	keyKey    = corev1.TLSPrivateKeyKey
)

// authority names the certificate authority.
const authority = "dovetail-webhook-ca"

// CertificateOptions tune [Certificates]. Reader, Writer, Namespace, Service and Secret are
// required.
type CertificateOptions struct {
	// Reader reads without a cache, so that no right to list or watch is needed.
	Reader client.Reader
	Writer client.Writer
	// Namespace is that of the Service and the Secret.
	Namespace, Service, Secret string
	// Configuration is the ValidatingWebhookConfiguration that is told the authority; empty
	// is none.
	Configuration string
	// Served is told the end of each certificate that is taken over. Defaults to nobody.
	Served func(end time.Time)
	// Now is the clock. Defaults to time.Now.
	Now func() time.Time
	// Every is how often all is looked at. Defaults to 10 s.
	Every time.Duration
	// CALifetime and Lifetime are those of the authority and of certificates. Default to 10
	// years and 1 year.
	CALifetime, Lifetime time.Duration
	// RenewBefore is how long before its end a certificate is made anew. Defaults to 90 days.
	RenewBefore time.Duration
}

func (o CertificateOptions) withDefaults() CertificateOptions {
	if o.Now == nil {
		o.Now = time.Now
	}
	if o.Served == nil {
		o.Served = func(time.Time) {}
	}
	const day = 24 * time.Hour
	for _, d := range []struct {
		v *time.Duration
		d time.Duration
	}{{&o.Every, 10 * time.Second}, {&o.CALifetime, 3650 * day}, {&o.Lifetime, 365 * day}, {&o.RenewBefore, 90 * day}} {
		if *d.v <= 0 {
			*d.v = d.d
		}
	}
	return o
}

// backdate is how far the clock of whoever verifies a certificate may be behind that of who
// made it.
const backdate = 24 * time.Hour

// Certificates keep the webhook's certificate and its authority. All replicas do so at the
// same time: who finds something missing, at its end or wrong makes it anew, and the others
// take it over.
type Certificates struct {
	opts   CertificateOptions
	issuer *rotator.CertRotator
	now    atomic.Pointer[served]
}

// served is the certificate in use.
type served struct {
	certificate *tls.Certificate
	pem         []byte
}

// NewCertificates returns certificates, which are kept once it is started.
func NewCertificates(opts CertificateOptions) *Certificates {
	opts = opts.withDefaults()
	host := opts.Service + "." + opts.Namespace + ".svc"
	return &Certificates{opts: opts, issuer: &rotator.CertRotator{
		CAName: authority, CAOrganization: "dovetail.sh", DNSName: host,
		// localhost is for API servers that are told of the webhook by a URL.
		ExtraDNSNames: []string{host + ".cluster.local", opts.Service + "." + opts.Namespace, "localhost"},
		ExtKeyUsages:  &[]x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth},
	}}
}

// NeedLeaderElection implements manager.LeaderElectionRunnable.
func (*Certificates) NeedLeaderElection() bool { return false }

// errNone is that of a process without a certificate.
var errNone = errors.New("the webhook has no certificate yet")

// Get is the certificate to serve, for [tls.Config].
func (c *Certificates) Get(*tls.ClientHelloInfo) (*tls.Certificate, error) {
	if s := c.now.Load(); s != nil {
		return s.certificate, nil
	}
	return nil, errNone
}

// Ready is an error as long as there is no certificate to serve.
func (c *Certificates) Ready() error {
	_, err := c.Get(nil)
	return err
}

// Start keeps the certificates until ctx ends. What fails is tried again: a process that
// cannot serve the webhook has other work.
func (c *Certificates) Start(ctx context.Context) error {
	log := ctrl.Log.WithName("webhook")
	last := ""
	for retry := time.Second; ; {
		wait := c.opts.Every
		done, err := c.Keep(ctx)
		if done != "" {
			log.Info(done, "secret", c.opts.Namespace+"/"+c.opts.Secret, "configuration", c.opts.Configuration)
		}
		text := ""
		if err != nil {
			text = err.Error()
			wait, retry = min(retry, wait), min(2*retry, c.opts.Every)
		} else {
			retry = time.Second
		}
		if text != "" && text != last && ctx.Err() == nil {
			log.Error(err, "the certificate of the webhook is not in order")
		}
		last = text
		select {
		case <-ctx.Done():
			return nil
		case <-time.After(wait):
		}
	}
}

// Keep looks at the Secret and the webhook configuration, and repairs them. It says what it
// did.
func (c *Certificates) Keep(ctx context.Context) (done string, err error) {
	for range 3 {
		// After a conflict another replica's is there, which the next look takes over.
		if done, err = c.keep(ctx); !apierrors.IsConflict(err) && !apierrors.IsAlreadyExists(err) {
			return done, err
		}
	}
	return done, err
}

func (c *Certificates) keep(ctx context.Context) (done string, err error) {
	secret := &corev1.Secret{ObjectMeta: metav1.ObjectMeta{Namespace: c.opts.Namespace, Name: c.opts.Secret}, Type: corev1.SecretTypeOpaque}
	err = c.opts.Reader.Get(ctx, client.ObjectKeyFromObject(secret), secret)
	missing := apierrors.IsNotFound(err)
	if err != nil && !missing {
		return "", fmt.Errorf("secret %s/%s: %w", c.opts.Namespace, c.opts.Secret, err)
	}
	if done, err = c.renew(secret); err != nil {
		return "", err
	}
	switch {
	case done == "":
	case missing:
		err = c.opts.Writer.Create(ctx, secret)
	default:
		err = c.opts.Writer.Update(ctx, secret)
	}
	if err != nil {
		return "", fmt.Errorf("secret %s/%s: %w", c.opts.Namespace, c.opts.Secret, err)
	}
	// First the authority is told, then its certificate is served.
	told := c.tell(ctx, secret.Data[caCertKey])
	return done, errors.Join(told, c.serve(secret))
}

// renew makes anew what is missing in the Secret, at its end or wrong, and says so; "" if
// all is well.
func (c *Certificates) renew(secret *corev1.Secret) (string, error) {
	if secret.Data == nil {
		secret.Data = map[string][]byte{}
	}
	d, now := secret.Data, c.opts.Now()
	begin := now.Add(-backdate)
	ca, causeCA := c.authority(d[caCertKey], d[caKeyKey])
	if causeCA != nil {
		made, err := c.issuer.CreateCACert(begin, now.Add(c.opts.CALifetime))
		if err != nil {
			return "", fmt.Errorf("certificate authority: %w", err)
		}
		// Other replicas serve certificates of the one before for a moment.
		d[caCertKey] = append(bytes.Clone(made.CertPEM), c.stillGood(d[caCertKey])...)
		d[caKeyKey] = made.KeyPEM
		ca = made
	}
	cause := causeCA
	if cause == nil {
		cause = c.valid(d[caCertKey], d[certKey], d[keyKey], append([]string{c.issuer.DNSName}, c.issuer.ExtraDNSNames...), c.issuer.ExtKeyUsages, c.opts.Lifetime)
	}
	if cause == nil {
		return "", nil
	}
	end := now.Add(c.opts.Lifetime)
	if ca.Cert.NotAfter.Before(end) {
		end = ca.Cert.NotAfter
	}
	cert, key, err := c.issuer.CreateCertPEM(ca, begin, end)
	if err != nil {
		return "", fmt.Errorf("certificate: %w", err)
	}
	d[certKey], d[keyKey] = cert, key
	if causeCA != nil {
		return fmt.Sprintf("made a certificate authority and a certificate: %v", causeCA), nil
	}
	return fmt.Sprintf("made a certificate: %v", cause), nil
}

// authority reads a certificate authority; the error says why it is of no use.
func (c *Certificates) authority(cert, key []byte) (*rotator.KeyPairArtifacts, error) {
	if err := c.valid(cert, cert, key, []string{authority}, nil, c.opts.CALifetime); err != nil {
		return nil, err
	}
	certBlock, _ := pem.Decode(cert)
	keyBlock, _ := pem.Decode(key)
	parsed, err := x509.ParseCertificate(certBlock.Bytes)
	if err != nil {
		return nil, err
	}
	if keyBlock == nil {
		return nil, errors.New("the key of the authority is not PEM")
	}
	private, err := x509.ParsePKCS1PrivateKey(keyBlock.Bytes)
	if err != nil {
		return nil, err
	}
	if !parsed.IsCA {
		return nil, errors.New("the certificate of the authority is not that of one")
	}
	return &rotator.KeyPairArtifacts{Cert: parsed, Key: private, CertPEM: pem.EncodeToMemory(certBlock), KeyPEM: key}, nil
}

// valid checks that a certificate is good now and will be for a while, for all names.
func (c *Certificates) valid(ca, cert, key []byte, names []string, usages *[]x509.ExtKeyUsage, lifetime time.Duration) error {
	now := c.opts.Now()
	soon := now.Add(min(c.opts.RenewBefore, lifetime/2))
	for _, at := range []time.Time{now, soon} {
		for _, name := range names {
			if _, err := rotator.ValidCert(ca, cert, key, name, usages, at); err != nil {
				if at.Equal(soon) {
					return fmt.Errorf("soon: %w", err)
				}
				return err
			}
		}
	}
	return nil
}

// stillGood is the first certificate of a bundle, if it has not ended.
func (c *Certificates) stillGood(bundle []byte) []byte {
	block, _ := pem.Decode(bundle)
	if block == nil {
		return nil
	}
	cert, err := x509.ParseCertificate(block.Bytes)
	if err != nil || !cert.IsCA || c.opts.Now().After(cert.NotAfter) {
		return nil
	}
	return pem.EncodeToMemory(block)
}

// serve takes over the certificate of a Secret.
func (c *Certificates) serve(secret *corev1.Secret) error {
	text := bytes.Join([][]byte{secret.Data[certKey], secret.Data[keyKey]}, nil)
	if s := c.now.Load(); s != nil && bytes.Equal(s.pem, text) {
		return nil
	}
	pair, err := tls.X509KeyPair(secret.Data[certKey], secret.Data[keyKey])
	if err != nil {
		return fmt.Errorf("certificate: %w", err)
	}
	c.now.Store(&served{&pair, text})
	c.opts.Served(pair.Leaf.NotAfter)
	return nil
}

// tell writes the authority into the webhook configuration.
func (c *Certificates) tell(ctx context.Context, bundle []byte) error {
	if c.opts.Configuration == "" {
		return nil
	}
	var config admissionregv1.ValidatingWebhookConfiguration
	if err := c.opts.Reader.Get(ctx, client.ObjectKey{Name: c.opts.Configuration}, &config); err != nil {
		return fmt.Errorf("validatingwebhookconfiguration %s: %w", c.opts.Configuration, err)
	}
	before := config.DeepCopy()
	changed := false
	for i := range config.Webhooks {
		cc := &config.Webhooks[i].ClientConfig
		if !bytes.Equal(cc.CABundle, bundle) {
			cc.CABundle, changed = bundle, true
		}
	}
	if !changed || config.DeletionTimestamp != nil {
		return nil
	}
	// A list is patched as a whole, so it must be of what is stored now.
	if err := c.opts.Writer.Patch(ctx, &config, client.MergeFromWithOptions(before, client.MergeFromWithOptimisticLock{})); err != nil {
		return fmt.Errorf("validatingwebhookconfiguration %s: %w", c.opts.Configuration, err)
	}
	return nil
}
