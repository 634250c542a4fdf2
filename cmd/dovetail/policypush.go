package main

import (
	"archive/tar"
	"bytes"
	"compress/gzip"
	"context"
	"errors"
	"fmt"

	ocispec "github.com/opencontainers/image-spec/specs-go/v1"
	"github.com/spf13/cobra"
	"oras.land/oras-go/v2"
	"oras.land/oras-go/v2/content/memory"
	"oras.land/oras-go/v2/registry"
	orasremote "oras.land/oras-go/v2/registry/remote"
	"oras.land/oras-go/v2/registry/remote/auth"
	"oras.land/oras-go/v2/registry/remote/credentials"

	"github.com/dovetail-sh/dovetail/engine/policy/source/remote"
)

func policyPushCommand() *cobra.Command {
	plain := false
	cmd := &cobra.Command{
		Use:   "push POLICY REFERENCE",
		Short: "Push a policy to an OCI registry",
		Long: `Push a policy to an OCI registry, and print the reference by digest that a NodePolicy
names in source.oci.ref.

A policy in Rego becomes an OPA bundle of its files and the library beside it, without
tests; a Wasm module is pushed as it is. The policy is loaded first: one that cannot be
used is not pushed. Equal files give an equal digest. Credentials are those of docker
login.`,
		Example: "  dovetail policy push policies/score/host_fee.rego registry.local/policies/host-fee:v1",
		Args:    cobra.ExactArgs(2),
		RunE: func(cmd *cobra.Command, args []string) error {
			digest, err := pushPolicy(cmd.Context(), args[0], args[1], plain)
			if err != nil {
				return fmt.Errorf("policy push: %w", err)
			}
			_, err = fmt.Fprintln(cmd.OutOrStdout(), digest)
			return err
		},
	}
	cmd.Flags().BoolVar(&plain, "plain-http", false, "use HTTP rather than HTTPS")
	return cmd
}

// pushPolicy pushes the one policy that path is, and returns its reference by digest.
func pushPolicy(ctx context.Context, path, reference string, plain bool) (string, error) {
	ref, err := registry.ParseReference(reference)
	if err != nil {
		return "", err
	}
	var loader policyLoader
	list, errs := loader.folder(ctx, path)
	switch {
	case len(errs) > 0 || len(list) != 1:
		return "", errOne(path, len(list), errs)
	}
	p := &list[0]
	layerType, kind, title := remote.LayerWasm, remote.ArtifactWasm, p.Name+".wasm"
	_, layer := moduleName(p.found)
	if p.module == nil {
		layerType, kind, title = remote.LayerBundle, remote.ArtifactRego, p.Name+".tar.gz"
		if layer, err = bundleOf(p.found.Artifact.Files); err != nil {
			return "", err
		}
	} else {
		p.module.Close()
	}
	store := memory.New()
	desc, err := oras.PushBytes(ctx, store, layerType, layer)
	if err != nil {
		return "", err
	}
	desc.Annotations = map[string]string{ocispec.AnnotationTitle: title}
	manifest, err := oras.PackManifest(ctx, store, oras.PackManifestVersion1_1, kind, oras.PackManifestOptions{
		Layers: []ocispec.Descriptor{desc},
		ManifestAnnotations: map[string]string{
			ocispec.AnnotationTitle:   p.Name,
			ocispec.AnnotationCreated: "1970-01-01T00:00:00Z", // equal files give an equal digest
			"sh.dovetail.policy.hook": string(p.Hook),
		},
	})
	if err != nil {
		return "", err
	}
	tag := ref.Reference
	if tag == "" || ref.ValidateReferenceAsDigest() == nil {
		tag = "latest"
	}
	if err := store.Tag(ctx, manifest, tag); err != nil {
		return "", err
	}
	repo := &orasremote.Repository{Reference: ref, PlainHTTP: plain}
	client := &auth.Client{Cache: auth.NewCache()}
	if store, err := credentials.NewStoreFromDocker(credentials.StoreOptions{}); err == nil {
		client.Credential = credentials.Credential(store)
	}
	repo.Client = client
	if _, err := oras.Copy(ctx, store, tag, repo, tag, oras.DefaultCopyOptions); err != nil {
		return "", err
	}
	return fmt.Sprintf("%s/%s@%s", ref.Registry, ref.Repository, manifest.Digest), nil
}

// bundleOf is an OPA bundle of files. It does not depend on how old they are.
func bundleOf(files map[string][]byte) ([]byte, error) {
	var b bytes.Buffer
	z := gzip.NewWriter(&b)
	t := tar.NewWriter(z)
	for _, name := range sortedKeys(files) {
		if err := t.WriteHeader(&tar.Header{Name: name, Mode: 0o644, Size: int64(len(files[name])), Format: tar.FormatUSTAR}); err != nil {
			return nil, err
		}
		if _, err := t.Write(files[name]); err != nil {
			return nil, err
		}
	}
	if err := errors.Join(t.Close(), z.Close()); err != nil {
		return nil, err
	}
	return b.Bytes(), nil
}
