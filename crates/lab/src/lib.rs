//! Tidegate's lab: simulate, analyse and replay limits before they are deployed.
//!
//! - [`traffic`]: models of arrivals, from a steady flow to an attack on window boundaries; seeded, composable, and the
//!   same on every machine.
//! - [`simulate`]: the engine's own limits over such arrivals, in virtual time, with each decision and the state behind it.
//! - [`expect`]: bounds and estimates of the result, by arithmetic.
//! - [`accuracy`]: the accuracy of each algorithm, compared with an exact log.
//! - [`replay`]: an access log, checked against rules.
//! - [`page`]: the files of the web page that draws all this.
//!
//! Nothing here opens a socket, reads a clock, or uses randomness without a seed.
//!
//! ```
//! use tidegate_core::{Limit, Micros};
//! use tidegate_lab::simulate::Simulation;
//! use tidegate_lab::traffic::Traffic;
//!
//! let traffic: Traffic = "square 50/s 5/s every 10s".parse()?;
//! let limits: [Limit; 2] = ["10/s burst 20".parse()?, "fixed 10/s".parse()?];
//! let mut simulation = Simulation::new(&limits);
//! for arrival in traffic.arrivals(Micros::from_secs(60), 1) {
//!     simulation.take(&arrival);
//! }
//! let [bucket, window] = simulation.totals() else { unreachable!("two limits") };
//! assert_eq!(bucket.arrivals, window.arrivals);
//! assert!(bucket.admitted > window.admitted);
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```

pub mod accuracy;
pub mod expect;
pub mod page;
pub mod random;
pub mod replay;
pub mod simulate;
pub mod traffic;

#[cfg(doctest)]
#[doc = include_str!("../../../docs/lab.md")]
struct Guide;
