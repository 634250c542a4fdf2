package local

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	authenticationv1 "k8s.io/api/authentication/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// volumeDir is where the files of a volume are.
func (r *run) volumeDir(name string) string { return filepath.Join(r.dir, "volumes", name) }

// writeVolumes makes the volumes of the pod, or brings their files up to date.
func (r *run) writeVolumes(ctx context.Context) error {
	for i := range r.pod.Spec.Volumes {
		volume := &r.pod.Spec.Volumes[i]
		if err := r.writeVolume(ctx, volume); err != nil {
			return fmt.Errorf("volume %q: %w", volume.Name, err)
		}
	}
	return nil
}

func (r *run) writeVolume(ctx context.Context, volume *corev1.Volume) error {
	files := map[string][]byte{}
	var err error
	switch source := volume.VolumeSource; {
	case source.HostPath != nil:
		return nil
	case source.EmptyDir != nil:
		return os.MkdirAll(r.volumeDir(volume.Name), 0o777)
	case source.Secret != nil:
		err = r.secretFiles(ctx, files, source.Secret.SecretName, source.Secret.Items, source.Secret.Optional)
	case source.ConfigMap != nil:
		err = r.configMapFiles(ctx, files, source.ConfigMap.Name, source.ConfigMap.Items, source.ConfigMap.Optional)
	case source.DownwardAPI != nil:
		err = r.downwardFiles(files, source.DownwardAPI.Items)
	case source.Projected != nil:
		for _, part := range source.Projected.Sources {
			err = errors.Join(err, r.projectedFiles(ctx, files, part))
		}
	default:
		return errors.New("of a kind that the local node does not have")
	}
	if err != nil {
		return err
	}
	return syncFiles(r.volumeDir(volume.Name), files)
}

func (r *run) projectedFiles(ctx context.Context, files map[string][]byte, part corev1.VolumeProjection) error {
	switch {
	case part.Secret != nil:
		return r.secretFiles(ctx, files, part.Secret.Name, part.Secret.Items, part.Secret.Optional)
	case part.ConfigMap != nil:
		return r.configMapFiles(ctx, files, part.ConfigMap.Name, part.ConfigMap.Items, part.ConfigMap.Optional)
	case part.DownwardAPI != nil:
		return r.downwardFiles(files, part.DownwardAPI.Items)
	case part.ServiceAccountToken != nil:
		token, err := r.token(ctx, part.ServiceAccountToken)
		files[part.ServiceAccountToken.Path] = []byte(token)
		return err
	default:
		return errors.New("a projection that the local node does not have")
	}
}

// issued is a token that was asked for.
type issued struct {
	token string
	renew time.Time
}

// token returns a token of the pod's ServiceAccount that is bound to the pod, and renews
// it when most of its time is over.
func (r *run) token(ctx context.Context, source *corev1.ServiceAccountTokenProjection) (string, error) {
	if have, ok := r.tokens[source.Path]; ok && time.Now().Before(have.renew) {
		return have.token, nil
	}
	request := &authenticationv1.TokenRequest{Spec: authenticationv1.TokenRequestSpec{
		ExpirationSeconds: source.ExpirationSeconds,
		BoundObjectRef:    &authenticationv1.BoundObjectReference{APIVersion: "v1", Kind: "Pod", Name: r.pod.Name, UID: r.pod.UID},
	}}
	if source.Audience != "" {
		request.Spec.Audiences = []string{source.Audience}
	}
	got, err := r.node.client.CoreV1().ServiceAccounts(r.pod.Namespace).CreateToken(ctx, r.pod.Spec.ServiceAccountName, request, metav1.CreateOptions{})
	if err != nil {
		return "", err
	}
	lasts := time.Until(got.Status.ExpirationTimestamp.Time)
	r.tokens[source.Path] = issued{token: got.Status.Token, renew: time.Now().Add(lasts * 8 / 10)}
	return got.Status.Token, nil
}

func (r *run) secretFiles(ctx context.Context, files map[string][]byte, name string, items []corev1.KeyToPath, optional *bool) error {
	secret, err := r.node.client.CoreV1().Secrets(r.pod.Namespace).Get(ctx, name, metav1.GetOptions{})
	if apierrors.IsNotFound(err) && optional != nil && *optional {
		return nil
	}
	if err != nil {
		return err
	}
	return pick(files, secret.Data, items, optional)
}

func (r *run) configMapFiles(ctx context.Context, files map[string][]byte, name string, items []corev1.KeyToPath, optional *bool) error {
	config, err := r.node.client.CoreV1().ConfigMaps(r.pod.Namespace).Get(ctx, name, metav1.GetOptions{})
	if apierrors.IsNotFound(err) && optional != nil && *optional {
		return nil
	}
	if err != nil {
		return err
	}
	data := maps.Clone(config.BinaryData)
	if data == nil {
		data = map[string][]byte{}
	}
	for key, value := range config.Data {
		data[key] = []byte(value)
	}
	return pick(files, data, items, optional)
}

// pick adds the items of data, or all of it if none are named.
func pick(files, data map[string][]byte, items []corev1.KeyToPath, optional *bool) error {
	if len(items) == 0 {
		maps.Copy(files, data)
		return nil
	}
	for _, item := range items {
		value, ok := data[item.Key]
		if !ok && (optional == nil || !*optional) {
			return fmt.Errorf("no key %q", item.Key)
		}
		if ok {
			files[item.Path] = value
		}
	}
	return nil
}

func (r *run) downwardFiles(files map[string][]byte, items []corev1.DownwardAPIVolumeFile) error {
	for _, item := range items {
		switch {
		case item.FieldRef != nil:
			value, err := r.field(item.FieldRef.FieldPath)
			if err != nil {
				return err
			}
			files[item.Path] = []byte(value)
		case item.ResourceFieldRef != nil:
			value, err := r.resource(item.ResourceFieldRef, "")
			if err != nil {
				return err
			}
			files[item.Path] = []byte(value)
		}
	}
	return nil
}

// syncFiles makes dir hold files and no others. Each file is replaced at once, so that
// nobody reads half of one, and only if it differs, so that nobody is woken for nothing.
func syncFiles(dir string, files map[string][]byte) error {
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return err
	}
	for _, name := range slices.Sorted(maps.Keys(files)) {
		path := filepath.Join(dir, name)
		if !strings.HasPrefix(path, dir+string(filepath.Separator)) {
			return fmt.Errorf("path %q leads out of the volume", name)
		}
		if have, err := os.ReadFile(path); err == nil && string(have) == string(files[name]) {
			continue
		}
		if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
			return err
		}
		temp := path + ".new"
		if err := os.WriteFile(temp, files[name], 0o644); err != nil { //nolint:gosec // as in a container, where others read it too
			return err
		}
		if err := os.Rename(temp, path); err != nil {
			return err
		}
	}
	return filepath.WalkDir(dir, func(path string, entry fs.DirEntry, err error) error {
		if err != nil || entry.IsDir() {
			return err
		}
		name, err := filepath.Rel(dir, path)
		if err != nil {
			return err
		}
		if _, ok := files[name]; !ok {
			return os.Remove(path)
		}
		return nil
	})
}

// mounts are where a container's volumes are and where it wants them.
func (r *run) mounts(container *corev1.Container) ([]mount, error) {
	var mounts []mount
	for _, want := range container.VolumeMounts {
		source := r.volumeDir(want.Name)
		for i := range r.pod.Spec.Volumes {
			if v := &r.pod.Spec.Volumes[i]; v.Name == want.Name && v.HostPath != nil {
				source = v.HostPath.Path
			}
		}
		if want.SubPath != "" {
			source = filepath.Join(source, want.SubPath)
		}
		if _, err := os.Stat(source); err != nil {
			return nil, fmt.Errorf("mount of volume %q: %w", want.Name, err)
		}
		mounts = append(mounts, mount{source: source, target: want.MountPath, readOnly: want.ReadOnly})
	}
	return mounts, nil
}

// writeKubeconfig writes a kubeconfig with the token that is mounted for in-cluster
// configurations, for a program that does not find it at its place. It returns "" if the
// pod has no such token.
func (r *run) writeKubeconfig(container *corev1.Container) (string, error) {
	const tokenPath = "/var/run/secrets/kubernetes.io/serviceaccount"
	for _, want := range container.VolumeMounts {
		if want.MountPath != tokenPath {
			continue
		}
		config := map[string]any{
			"apiVersion": "v1", "kind": "Config", "current-context": "local",
			"clusters": []any{map[string]any{"name": "local", "cluster": map[string]any{
				"server": "https://" + r.node.api, "certificate-authority-data": r.node.ca,
			}}},
			"users":    []any{map[string]any{"name": "local", "user": map[string]any{"tokenFile": filepath.Join(r.volumeDir(want.Name), "token")}}},
			"contexts": []any{map[string]any{"name": "local", "context": map[string]any{"cluster": "local", "user": "local", "namespace": r.pod.Namespace}}},
		}
		// Every kubeconfig may be JSON, since JSON is YAML.
		content, err := json.Marshal(config)
		if err != nil {
			return "", err
		}
		path := filepath.Join(r.dir, "kubeconfig")
		return path, os.WriteFile(path, content, 0o600)
	}
	return "", nil
}
