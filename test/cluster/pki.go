package cluster

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"errors"
	"fmt"
	"io/fs"
	"math/big"
	"net"
	"os"
	"path/filepath"
	"time"
)

// authority is a certificate authority with its key.
type authority struct {
	cert *x509.Certificate
	key  *ecdsa.PrivateKey
	pem  []byte
}

// pair is a certificate with its key, both as PEM.
type pair struct {
	cert, key []byte
}

// validity is how long certificates are good for. A cluster with kept data may be started
// again much later, and its authority is kept with the data.
const validity = 10 * 365 * 24 * time.Hour

// Files of the folder of certificates.
const (
	caCert        = "ca.crt"
	caKey         = "ca.key"
	servingCert   = "apiserver.crt"
	servingKey    = "apiserver.key"
	proxyCACert   = "front-proxy-ca.crt"
	proxyCert     = "front-proxy-client.crt"
	proxyKey      = "front-proxy-client.key"
	tokenKey      = "serviceaccounts.key"
	tokenKeyCheck = "serviceaccounts.pub"
)

// writePKI fills dir with the certificates and keys of a control plane and returns the
// authority that clients and the API server trust. What is there already is kept, so
// that tokens and kubeconfigs of kept data stay good.
func writePKI(dir string, serviceIP net.IP) (*authority, error) {
	if ca, err := loadAuthority(dir); err == nil || !errors.Is(err, fs.ErrNotExist) {
		return ca, err
	}
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return nil, err
	}
	ca, err := newAuthority("dovetail-ca")
	if err != nil {
		return nil, err
	}
	caKeyPEM, err := keyPEM(ca.key)
	if err != nil {
		return nil, err
	}
	serving, err := ca.serve("kube-apiserver",
		[]string{"localhost", "kubernetes", "kubernetes.default", "kubernetes.default.svc", "kubernetes.default.svc.cluster.local"},
		[]net.IP{net.IPv4(127, 0, 0, 1), serviceIP})
	if err != nil {
		return nil, err
	}
	proxyCA, err := newAuthority("front-proxy-ca")
	if err != nil {
		return nil, err
	}
	proxy, err := proxyCA.client(proxyName, nil)
	if err != nil {
		return nil, err
	}
	signing, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return nil, err
	}
	signingPEM, err := keyPEM(signing)
	if err != nil {
		return nil, err
	}
	public, err := x509.MarshalPKIXPublicKey(&signing.PublicKey)
	if err != nil {
		return nil, err
	}
	// The authority comes last: a folder that has it is complete.
	for _, file := range []struct {
		name    string
		content []byte
	}{
		{servingCert, serving.cert},
		{servingKey, serving.key},
		{proxyCACert, proxyCA.pem},
		{proxyCert, proxy.cert},
		{proxyKey, proxy.key},
		{tokenKey, signingPEM},
		{tokenKeyCheck, pem.EncodeToMemory(&pem.Block{Type: "PUBLIC KEY", Bytes: public})},
		{caKey, caKeyPEM},
		{caCert, ca.pem},
	} {
		if err := os.WriteFile(filepath.Join(dir, file.name), file.content, 0o600); err != nil {
			return nil, err
		}
	}
	return ca, nil
}

// loadAuthority reads the authority of a folder that writePKI filled. It returns an
// error that is fs.ErrNotExist if it was not filled.
func loadAuthority(dir string) (*authority, error) {
	certPEM, err := os.ReadFile(filepath.Join(dir, caCert))
	if err != nil {
		return nil, err
	}
	keyText, err := os.ReadFile(filepath.Join(dir, caKey))
	if err != nil {
		return nil, err
	}
	certBlock, _ := pem.Decode(certPEM)
	keyBlock, _ := pem.Decode(keyText)
	if certBlock == nil || keyBlock == nil {
		return nil, fmt.Errorf("read certificates of %s: not PEM", dir)
	}
	cert, err := x509.ParseCertificate(certBlock.Bytes)
	if err != nil {
		return nil, fmt.Errorf("read certificates of %s: %w", dir, err)
	}
	key, err := x509.ParseECPrivateKey(keyBlock.Bytes)
	if err != nil {
		return nil, fmt.Errorf("read certificates of %s: %w", dir, err)
	}
	return &authority{cert: cert, key: key, pem: certPEM}, nil
}

func newAuthority(name string) (*authority, error) {
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return nil, err
	}
	template := &x509.Certificate{
		Subject:               pkix.Name{CommonName: name},
		IsCA:                  true,
		BasicConstraintsValid: true,
		KeyUsage:              x509.KeyUsageCertSign | x509.KeyUsageDigitalSignature,
	}
	der, err := sign(template, template, &key.PublicKey, key)
	if err != nil {
		return nil, err
	}
	cert, err := x509.ParseCertificate(der)
	if err != nil {
		return nil, err
	}
	return &authority{cert: cert, key: key, pem: pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: der})}, nil
}

// serve issues the certificate of a server.
func (a *authority) serve(name string, hosts []string, ips []net.IP) (pair, error) {
	return a.issue(&x509.Certificate{
		Subject:     pkix.Name{CommonName: name},
		DNSNames:    hosts,
		IPAddresses: ips,
		ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth},
	})
}

// client issues the certificate of a user who is in groups.
func (a *authority) client(user string, groups []string) (pair, error) {
	return a.issue(&x509.Certificate{
		Subject:     pkix.Name{CommonName: user, Organization: groups},
		ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageClientAuth},
	})
}

func (a *authority) issue(template *x509.Certificate) (pair, error) {
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return pair{}, err
	}
	template.KeyUsage = x509.KeyUsageDigitalSignature
	der, err := sign(template, a.cert, &key.PublicKey, a.key)
	if err != nil {
		return pair{}, err
	}
	encoded, err := keyPEM(key)
	if err != nil {
		return pair{}, err
	}
	return pair{cert: pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: der}), key: encoded}, nil
}

// sign sets what all certificates share. They are valid from an hour ago, so that a
// clock that is set back a little does not refuse them.
func sign(template, parent *x509.Certificate, key *ecdsa.PublicKey, with *ecdsa.PrivateKey) ([]byte, error) {
	serial, err := rand.Int(rand.Reader, new(big.Int).Lsh(big.NewInt(1), 120))
	if err != nil {
		return nil, err
	}
	template.SerialNumber = serial
	template.NotBefore = time.Now().Add(-time.Hour)
	template.NotAfter = template.NotBefore.Add(validity)
	return x509.CreateCertificate(rand.Reader, template, parent, key, with)
}

func keyPEM(key *ecdsa.PrivateKey) ([]byte, error) {
	der, err := x509.MarshalECPrivateKey(key)
	if err != nil {
		return nil, err
	}
	return pem.EncodeToMemory(&pem.Block{Type: "EC PRIVATE KEY", Bytes: der}), nil
}
