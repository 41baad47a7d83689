"""What one step of a workload computes and moves."""
