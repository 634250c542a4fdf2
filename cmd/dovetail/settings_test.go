package main

import (
	"strings"
	"testing"

	"github.com/spf13/pflag"
)

func TestSettings_webhook(t *testing.T) {
	tests := map[string]struct {
		args []string
		// serves is whether the webhook is served, with this Secret and configuration.
		serves                bool
		secret, configuration string
		wantErr, warns        string
	}{
		"by default":           {},
		"a Service":            {args: []string{"--webhook-service-name=a"}, serves: true, secret: "a-webhook-cert", configuration: "a"},
		"all names":            {args: []string{"--webhook-service-name=a", "--webhook-secret-name=b", "--webhook-configuration-name=c"}, serves: true, secret: "b", configuration: "c"},
		"no port":              {args: []string{"--webhook-service-name=a", "--webhook-port=0"}},
		"no port nor Service":  {args: []string{"--webhook-secret-name=b", "--webhook-port=0"}},
		"no Service":           {args: []string{"--webhook-secret-name=b"}, wantErr: "--webhook-service-name: must be given"},
		"a port out of bounds": {args: []string{"--webhook-service-name=a", "--webhook-port=70000"}, wantErr: "--webhook-port: 70000"},
		"shadow":               {args: []string{"--webhook-service-name=a", "--shadow"}, warns: "not served in shadow mode"},
	}
	for name, tt := range tests {
		t.Run(name, func(t *testing.T) {
			var s settings
			f := pflag.NewFlagSet("test", pflag.ContinueOnError)
			s.add(f)
			if err := f.Parse(tt.args); err != nil {
				t.Fatal(err)
			}
			warnings, err := s.complete()
			if (err == nil) != (tt.wantErr == "") || err != nil && !strings.Contains(err.Error(), tt.wantErr) {
				t.Fatalf("error %v, want %q", err, tt.wantErr)
			}
			if err != nil {
				return
			}
			if s.webhook() != tt.serves {
				t.Errorf("serves: %t, want %t", s.webhook(), tt.serves)
			}
			if tt.serves && (s.webhookSecret != tt.secret || s.webhookConfiguration != tt.configuration) {
				t.Errorf("Secret %q, configuration %q, want %q, %q", s.webhookSecret, s.webhookConfiguration, tt.secret, tt.configuration)
			}
			if text := strings.Join(warnings, "; "); (text == "") != (tt.warns == "") || !strings.Contains(text, tt.warns) {
				t.Errorf("warnings %q, want %q", text, tt.warns)
			}
		})
	}
}

func TestSettings_minSaving(t *testing.T) {
	tests := map[string]struct {
		arg, env string
		// want is what disruption is told: negative is any saving.
		want    int
		wantErr string
	}{
		"by default":      {want: 60},
		"a flag":          {arg: "100", want: 100},
		"the environment": {env: "30", want: 30},
		"the flag counts": {arg: "100", env: "30", want: 100},
		"any saving":      {arg: "0", want: -1},
		"more than all":   {arg: "1000", wantErr: "--min-saving: 1000: must be from 0 to 999 permille"},
		"a negative one":  {arg: "-1", wantErr: "--min-saving: -1: must be from 0 to 999 permille"},
	}
	for name, tt := range tests {
		t.Run(name, func(t *testing.T) {
			var s settings
			f := pflag.NewFlagSet("test", pflag.ContinueOnError)
			s.add(f)
			var args []string
			if tt.arg != "" {
				args = []string{"--min-saving=" + tt.arg}
			}
			if err := f.Parse(args); err != nil {
				t.Fatal(err)
			}
			if err := fromEnvironment(f, func(name string) (string, bool) { return tt.env, name == "MIN_SAVING" && tt.env != "" }); err != nil {
				t.Fatal(err)
			}
			_, err := s.complete()
			switch {
			case tt.wantErr != "" && (err == nil || !strings.Contains(err.Error(), tt.wantErr)):
				t.Errorf("error %v, want %q", err, tt.wantErr)
			case tt.wantErr == "" && (err != nil || leastSaving(s.minSaving) != tt.want):
				t.Errorf("saving %d, error %v, want %d", leastSaving(s.minSaving), err, tt.want)
			}
		})
	}
}
