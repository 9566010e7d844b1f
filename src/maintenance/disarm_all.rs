//! Disarming all alarms: one request for the active alarms, then one per alarm.

use std::time::Duration;

use tokio::time::Instant;

use super::{Alarm, Maintenance};
use crate::{
    call::deadline_in,
    error::Result,
    request::{ClientHandle, macros::request},
};

/// Disarms all active alarms. Created by [`Maintenance::disarm_all`].
#[derive(Debug, Clone)]
#[must_use = "a request is sent when it is awaited"]
pub struct DisarmAll<C = ()> {
    timeout: Option<Duration>,
    client: C,
}

request!(DisarmAll {} -> Vec<Alarm>);

impl<C: Clone> Maintenance<C> {
    /// Disarms all alarms that are active now and returns them.
    pub fn disarm_all(&self) -> DisarmAll<C> {
        DisarmAll {
            timeout: None,
            client: self.0.clone(),
        }
    }
}

impl DisarmAll {
    async fn perform(self, client: &impl ClientHandle, timeout: Duration) -> Result<Vec<Alarm>> {
        let deadline = deadline_in(timeout);
        let remaining = || deadline.saturating_duration_since(Instant::now());
        let maintenance = Maintenance::new(client.clone());
        let active = maintenance.alarms().timeout(remaining()).await?.alarms;
        for alarm in &active {
            maintenance.disarm(*alarm).timeout(remaining()).await?;
        }
        Ok(active)
    }
}
