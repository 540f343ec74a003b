-- No function of this schema is for everyone: grant what a role needs (see docs/operations.md).
revoke execute on all functions in schema agent from public;
