//! `tidegate top`: watches a server live.

mod draw;
mod feed;
mod model;

use std::io::{self, IsTerminal, Write};
use std::path::PathBuf;
use std::process::ExitCode;
use std::time::Duration;

use crossterm::event::{self, Event, KeyCode, KeyEvent, KeyEventKind, KeyModifiers};
use http::Uri;
use ratatui::Terminal;
use ratatui::backend::TestBackend;
use tokio::sync::mpsc::{Receiver, channel};

use self::feed::Feed;
use self::model::{FeedEvent, TopModel};
use super::admin_server::{AdminServer, TOKEN_HELP};
use super::{failed, plain};

const EXAMPLES: &str = "\
Examples:
  tidegate top --token 0123456789abcdef                      the server on this machine
  tidegate top --admin https://10.0.0.5:9600 --ca ca.pem     another server; the token is in TIDEGATE_ADMIN_TOKEN
  tidegate top --once                                        two seconds of data, as text

Keys: q quits, p pauses, s sorts rules by the next column, k shows the keys with the most calls to Redis in place of those with
the most denials.
Exit status: 0 on success, 1 if the server cannot be watched, 2 on a usage error.";

/// Watch a server live: decisions per second, denials by rule, and the busiest keys.
///
/// Uses the server's admin API. If the connection drops, the last data stay on the screen, and it reconnects.
#[derive(clap::Args)]
#[command(after_help = EXAMPLES)]
pub(super) struct Args {
    /// URL of the server's admin listener.
    #[arg(long, value_name = "URL", default_value = "http://127.0.0.1:9600")]
    admin: Uri,

    /// Admin token: `admin.token`, or the token that the server printed at startup.
    #[arg(long, value_name = "TOKEN", env = "TIDEGATE_ADMIN_TOKEN", hide_env_values = true)]
    token: Option<String>,

    /// CA certificates for the server, as PEM. Default: the certificate authorities that browsers trust.
    #[arg(long, value_name = "FILE")]
    ca: Option<PathBuf>,

    /// Print one screen after two seconds, and exit.
    #[arg(long)]
    once: bool,
}

/// Capacity of the queue of views.
const MOST_VIEWS: usize = 4;

/// Interval between redraws if no key is pressed.
const DRAW_EVERY: Duration = Duration::from_millis(200);

pub(super) fn run(args: &Args) -> io::Result<ExitCode> {
    let Some(token) = args.token.as_deref().filter(|token| !token.is_empty()) else {
        failed(&format_args!("the admin listener requires its token: {TOKEN_HELP}"))?;
        return Ok(ExitCode::from(2));
    };
    let server = match AdminServer::new(&args.admin, token, args.ca.as_deref()) {
        Ok(server) => server,
        Err(error) => return failed(&error),
    };
    if !args.once && !io::stdout().is_terminal() {
        return failed(&"standard output is not a terminal: use `tidegate top --once` to print one screen");
    }
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build()?;
    let (sender, news) = channel(16);
    runtime.spawn(Feed::new(server).follow(sender));
    let mut model = TopModel::new(&plain(&args.admin.to_string()));
    let done = if args.once { once(&mut model, news) } else { watch(&mut model, news) };
    runtime.shutdown_background();
    done
}

fn watch(model: &mut TopModel, mut news: Receiver<FeedEvent>) -> io::Result<ExitCode> {
    let mut terminal = ratatui::try_init()?;
    let done = loop {
        while let Ok(news) = news.try_recv() {
            model.learn(news);
        }
        if let Err(error) = terminal.draw(|frame| draw::draw(frame, model)) {
            break Err(error);
        }
        match pressed() {
            Ok(Some(KeyEvent { code: KeyCode::Char('q') | KeyCode::Esc, .. })) => break Ok(ExitCode::SUCCESS),
            Ok(Some(KeyEvent { code: KeyCode::Char('c'), modifiers: KeyModifiers::CONTROL, .. })) => {
                break Ok(ExitCode::SUCCESS);
            }
            Ok(Some(KeyEvent { code: KeyCode::Char('s'), .. })) => model.sort_by_next(),
            Ok(Some(KeyEvent { code: KeyCode::Char('k'), .. })) => model.rank_by_next(),
            Ok(Some(KeyEvent { code: KeyCode::Char('p' | ' '), .. })) => model.pause(!model.is_paused),
            Ok(_) => {}
            Err(error) => break Err(error),
        }
    };
    ratatui::restore();
    done
}

/// The key pressed before the next redraw is due.
fn pressed() -> io::Result<Option<KeyEvent>> {
    if !event::poll(DRAW_EVERY)? {
        return Ok(None);
    }
    Ok(match event::read()? {
        Event::Key(key) if key.kind == KeyEventKind::Press => Some(key),
        _ => None,
    })
}

/// Prints one screen, once two views give a rate. If the server's clock is paused, two views never give one.
fn once(model: &mut TopModel, mut news: Receiver<FeedEvent>) -> io::Result<ExitCode> {
    for _ in 0..MOST_VIEWS {
        if model.knows_speed() {
            break;
        }
        match news.blocking_recv() {
            Some(FeedEvent::Lost(reason)) => return failed(&reason),
            Some(news) => model.learn(news),
            None => return failed(&"the server sends no data"),
        }
    }
    let Ok(mut terminal) = Terminal::new(TestBackend::new(100, 40));
    let Ok(_) = terminal.draw(|frame| draw::draw(frame, model));
    let mut out = anstream::stdout().lock();
    let rows = terminal.backend().buffer().content().chunks(100);
    let lines = rows.map(|row| row.iter().map(ratatui::buffer::Cell::symbol).collect::<String>().trim_end().to_owned());
    // Collapses consecutive empty lines: they fill a screen, but printed text does not need them.
    let mut lines: Vec<String> = lines.collect();
    lines.dedup_by(|line, before| line.is_empty() && before.is_empty());
    lines.iter().try_for_each(|line| writeln!(out, "{line}"))?;
    Ok(ExitCode::SUCCESS)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_arguments_hang_together() {
        <Args as clap::Args>::augment_args(clap::Command::new("top")).debug_assert();
    }
}
