//! The agent beside a real card: what it tells is what `nvidia-smi` tells, and a process that holds memory is seen.
//! `tests/gpu/check` runs this; the record goes to `tests/gpu/runs/`.

#[cfg(test)]
mod cuda;
#[cfg(test)]
mod card;
