// What completes a release, with what only that needs.
module github.com/gpushare/dra-driver-gpushare/deployments/release

go 1.26.0

require (
	github.com/CycloneDX/cyclonedx-go v0.12.0
	github.com/google/go-cmp v0.7.0
	github.com/urfave/cli/v3 v3.14.0
	sigs.k8s.io/yaml v1.6.0
)

require go.yaml.in/yaml/v2 v2.4.2 // indirect
