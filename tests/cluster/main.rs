//! Tests on the real cluster of `tests/cluster/up`. All of them need root; `tests/run cluster` runs them.

#[cfg(test)]
mod built;
#[cfg(test)]
mod life;
#[cfg(test)]
mod chart;
#[cfg(test)]
mod tokens;
#[cfg(test)]
mod guard;
#[cfg(test)]
mod reserved;
#[cfg(test)]
mod agent;
#[cfg(test)]
mod bed;
#[cfg(test)]
mod audit;
#[cfg(test)]
mod shape;
mod sharing;
#[cfg(test)]
mod fleet;
#[cfg(test)]
mod restarts;
#[cfg(test)]
mod failpoints;
#[cfg(test)]
mod outage;
#[cfg(test)]
mod refusals;
#[cfg(test)]
mod stub;
#[cfg(test)]
mod numbers;
#[cfg(test)]
mod budget;
#[cfg(test)]
mod health;
#[cfg(test)]
mod announce;
#[cfg(test)]
mod writes;
#[cfg(test)]
mod profile;
#[cfg(test)]
mod cdi;
#[cfg(test)]
mod container;
#[cfg(test)]
mod doctor;
#[cfg(test)]
mod guides;
#[cfg(test)]
mod wakes;
#[cfg(test)]
mod many_wakes;
#[cfg(test)]
mod writable;
#[cfg(test)]
mod holders;
#[cfg(test)]
mod devices;
#[cfg(test)]
mod overuse;
#[cfg(test)]
mod attack;
#[cfg(test)]
mod hostile_load;
#[cfg(test)]
mod stolen;
#[cfg(test)]
mod options;
#[cfg(test)]
mod quickstart;
#[cfg(test)]
mod topology;
#[cfg(test)]
mod placed;
#[cfg(test)]
mod seats;
#[cfg(test)]
mod order;
#[cfg(test)]
mod leaders;
#[cfg(test)]
mod throughput;
#[cfg(test)]
mod ready;
#[cfg(test)]
mod hami;
#[cfg(test)]
mod registration;
#[cfg(test)]
mod upgrade;
#[cfg(test)]
mod extender;
#[cfg(test)]
mod vm;
