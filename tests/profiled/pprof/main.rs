//! Profiles of a program with known work, read by the tests themselves and by the real `go tool pprof`.

#[cfg(test)]
mod program;
#[cfg(test)]
mod cpu;
#[cfg(test)]
mod memory;
#[cfg(test)]
mod threads;
#[cfg(test)]
mod routes;
#[cfg(test)]
mod functions;
#[cfg(test)]
mod go;
#[cfg(test)]
mod stress;
