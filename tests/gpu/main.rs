//! The agent on a real GPU: it reports the same values as `nvidia-smi`, and a process that holds memory.
//! `tests/gpu/check` runs these tests; the record goes to `tests/gpu/runs/`.

#[cfg(test)]
mod cuda;
#[cfg(test)]
mod nvidia_smi;
