package cluster

import (
	"context"
	"fmt"
	"path/filepath"

	authenticationv1 "k8s.io/api/authentication/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"
	clientcmdapi "k8s.io/client-go/tools/clientcmd/api"
)

// Kubeconfig is the path of the administrator's kubeconfig, which is good for kubectl.
func (c *Cluster) Kubeconfig() string { return filepath.Join(c.dir, "kubeconfig") }

// RESTConfig returns a new configuration of a client that may do everything and whose
// rate nothing limits.
func (c *Cluster) RESTConfig() *rest.Config { return rest.CopyConfig(c.admin) }

// UserConfig returns the configuration of a client that is a user in groups, by a
// certificate. RBAC decides what it may do: nothing much, unless somebody binds roles.
func (c *Cluster) UserConfig(user string, groups ...string) (*rest.Config, error) {
	cert, err := c.ca.client(user, groups)
	if err != nil {
		return nil, fmt.Errorf("certificate of user %q: %w", user, err)
	}
	config := c.anonymous()
	config.TLSClientConfig.CertData, config.TLSClientConfig.KeyData = cert.cert, cert.key
	return config, nil
}

// TokenConfig returns the configuration of a client that is a ServiceAccount, by a token
// that is good for an hour.
func (c *Cluster) TokenConfig(ctx context.Context, namespace, name string) (*rest.Config, error) {
	client, err := kubernetes.NewForConfig(c.RESTConfig())
	if err != nil {
		return nil, err
	}
	token, err := client.CoreV1().ServiceAccounts(namespace).CreateToken(ctx, name, &authenticationv1.TokenRequest{}, metav1.CreateOptions{})
	if err != nil {
		return nil, fmt.Errorf("token of ServiceAccount %s/%s: %w", namespace, name, err)
	}
	config := c.anonymous()
	config.BearerToken = token.Status.Token
	return config, nil
}

// WriteKubeconfig writes the kubeconfig of a client to a file, for programs that take
// one.
func (c *Cluster) WriteKubeconfig(name string, config *rest.Config) error {
	return writeKubeconfig(name, config)
}

// anonymous is the configuration of a client that is nobody.
func (c *Cluster) anonymous() *rest.Config {
	return &rest.Config{
		Host: "https://" + c.Address(),
		// The API server's own limits are enough.
		QPS:             -1,
		TLSClientConfig: rest.TLSClientConfig{CAData: c.ca.pem},
	}
}

func writeKubeconfig(name string, config *rest.Config) error {
	const entry = "dovetail"
	kubeconfig := clientcmdapi.NewConfig()
	kubeconfig.Clusters[entry] = &clientcmdapi.Cluster{Server: config.Host, CertificateAuthorityData: config.CAData}
	kubeconfig.AuthInfos[entry] = &clientcmdapi.AuthInfo{
		ClientCertificateData: config.CertData, ClientKeyData: config.KeyData, Token: config.BearerToken,
	}
	kubeconfig.Contexts[entry] = &clientcmdapi.Context{Cluster: entry, AuthInfo: entry}
	kubeconfig.CurrentContext = entry
	if err := clientcmd.WriteToFile(*kubeconfig, name); err != nil {
		return fmt.Errorf("write kubeconfig: %w", err)
	}
	return nil
}
