"""What all recognition pipelines share: streams, segmentation, the step of an execution."""
