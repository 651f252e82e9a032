package main
import "context"
func (b *bench) onCluster(ctx context.Context, kubeconfig, scheduler string) ([]string, error) { return nil, nil }
