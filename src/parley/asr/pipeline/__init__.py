"""What all recognition rails share: streams, segmentation, the step of an execution."""
