//! The stream of a run that is compared with others: its recipe, its metrics and the samples of its nodes.

use super::{Ended, LIST, NodeFiles, Stream, pieces};
use crate::comparison::settings;
use rundir::{MetricSample, RunId, Tail};
use std::convert::Infallible;
use tokio::task::block_in_place;
use ui::{Msg, RunMsg};

impl Stream {
    /// Reads the files of a run as they grow. The list of runs contains the state of the run.
    pub(super) async fn compared(&self, run: &RunId) -> Result<Infallible, Ended> {
        let dir = self.workspace.dir(run);
        let send = |what| self.send_blocking(Msg::Run { run: run.clone(), what });
        block_in_place(|| {
            send(RunMsg::Opened)?;
            match dir.read_run() {
                Ok(run) => {
                    let last = dir.latest_attempt().ok().flatten();
                    send(RunMsg::Recipe(settings(&run, last.as_ref())))?;
                }
                Err(error) => send(RunMsg::Lost(error.into()))?,
            }
            Ok(())
        })?;
        let mut metrics = Tail::<MetricSample>::new(dir.metrics());
        let mut nodes = NodeFiles::default();
        loop {
            block_in_place(|| {
                for points in pieces(nodes.poll(&dir)) {
                    send(RunMsg::NodePoints(points))?;
                }
                while let Some(batch) = self.or_lost(run, metrics.poll())? {
                    if batch.restarted {
                        send(RunMsg::Opened)?;
                        nodes = NodeFiles::default();
                    }
                    for samples in pieces(batch.items) {
                        send(RunMsg::Metrics(samples))?;
                    }
                    if !batch.more {
                        break;
                    }
                }
                Ok(())
            })?;
            self.pause(LIST).await?;
        }
    }
}
