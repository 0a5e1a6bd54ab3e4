//! The stream of a run that is compared with others: its recipe, metrics and samples of nodes.

use super::{Ended, LIST, NodeFiles, SAMPLES, Stream};
use recipe::shown_settings;
use rundir::{MetricSample, RunId, Tail};
use std::convert::Infallible;
use tokio::task::block_in_place;
use ui::{Msg, RunMsg};

impl Stream {
    /// Reads the files of a run as they grow. The state of the run is in the list of runs.
    pub(super) async fn compared(&self, run: &RunId) -> Result<Infallible, Ended> {
        let dir = self.workspace.dir(run);
        let send = |what| self.send(Msg::Run { run: run.clone(), what });
        send(RunMsg::Opened).await?;
        match block_in_place(|| dir.read_run()) {
            Ok(run) => {
                let settings = shown_settings(&run.recipe).into_iter();
                send(RunMsg::Recipe(settings.map(|(key, value)| (key.to_owned(), value)).collect())).await?;
            }
            Err(error) => send(RunMsg::Lost(error.into())).await?,
        }
        let mut metrics = Tail::<MetricSample>::new(dir.metrics());
        let mut nodes = NodeFiles::default();
        loop {
            for points in block_in_place(|| nodes.poll(&dir)).chunks(SAMPLES) {
                send(RunMsg::NodePoints(points.to_vec())).await?;
            }
            while let Some(batch) = self.or_lost(run, block_in_place(|| metrics.poll())).await? {
                if batch.restarted {
                    send(RunMsg::Opened).await?;
                    nodes = NodeFiles::default();
                }
                for samples in batch.items.chunks(SAMPLES) {
                    send(RunMsg::Metrics(samples.to_vec())).await?;
                }
                if !batch.more {
                    break;
                }
            }
            self.pause(LIST).await?;
        }
    }
}
