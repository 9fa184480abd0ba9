"""SageMaker's runtime interface, as boto3's `sagemaker-runtime` calls it."""
