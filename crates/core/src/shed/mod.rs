//! Load shedding by priority: under overload, the least important requests are refused first.
//!
//! A request has a *level*: its class, and within the class one of 128 cohorts. The cohort is a hash of the client and the
//! hour. So the requests of a client are all admitted or all refused, and other clients are refused in the next hour. A
//! [`ShedThreshold`] computes the lowest level that is admitted, which rises under overload and falls otherwise. It is
//! pure: equal windows give equal thresholds. [`LoadShedder`] enforces the threshold, counts arrivals, and collects the
//! signals of overload.
//!
//! The levels and the steps of the threshold are those of DAGOR, the overload control of WeChat: 5 % less is admitted after
//! a window with overload, and 1 % more after a window without.
//!
//! ```
//! use tidegate_core::shed::LoadShedder;
//!
//! const LOW: usize = 0;
//! let shedder = LoadShedder::new();
//! let client = 0x5eed; // a hash of the client
//! assert!(shedder.admits(LOW, client, false), "there is no overload");
//! ```

#[cfg(test)]
mod closed_loop;
mod level;
mod shedder;
mod threshold;

pub use level::{CLASSES, COHORTS, LEVELS, ShedLevel};
pub use shedder::{LoadShedder, OverloadBounds, ShedCounts, ShedWindow};
pub use threshold::ShedThreshold;
