//! The faults that a script can inject into the worker.

use std::time::Duration;
use std::{hint, process, thread};

use dalsegno_sdk::terminate;
use rustix::process::{Signal, getpid, kill_process};

use crate::input::Action;
use crate::lossy_proxy::LossyProxy;

/// Performs an action. If it returns, the agent's loop continues.
pub fn perform(action: &Action, proxy: Option<&LossyProxy>) {
    println!("action {action:?}");
    match action {
        Action::Exit(code) => process::exit(*code),
        Action::Oom => exhaust_memory(),
        Action::Hang => loop {
            thread::sleep(Duration::from_secs(3600));
        },
        Action::Spin => loop {
            hint::spin_loop();
        },
        Action::Freeze(_) => {
            if let Err(error) = kill_process(getpid(), Signal::STOP) {
                println!("cannot stop: {error}");
            }
        }
        Action::Report(class, message) => terminate(*class, message),
        Action::LoseAnswer => {
            if let Some(proxy) = proxy {
                proxy.lose_next_answer();
            }
        }
    }
}

/// Allocates memory until the kernel kills the process. It writes to each block, because the kernel counts only pages
/// that have been written.
fn exhaust_memory() -> ! {
    let mut blocks = Vec::new();
    loop {
        blocks.push(vec![1_u8; 1 << 20]);
        hint::black_box(&blocks);
    }
}
