//! The worst that can happen to a worker, done to itself.

use std::time::Duration;
use std::{hint, process, thread};

use dalsegno_sdk::terminate;
use rustix::process::{Signal, getpid, kill_process};

use crate::input::Act;
use crate::lossy::Lossy;

/// Does it. What returns leaves the loop to go on.
pub fn act(act: &Act, lossy: Option<&Lossy>) {
    println!("does {act:?}");
    match act {
        Act::Exit(code) => process::exit(*code),
        Act::Oom => exhaust(),
        Act::Hang => loop {
            thread::sleep(Duration::from_secs(3600));
        },
        Act::Spin => loop {
            hint::spin_loop();
        },
        Act::Freeze(_) => {
            if let Err(error) = kill_process(getpid(), Signal::STOP) {
                println!("cannot stop: {error}");
            }
        }
        Act::Report(class, message) => terminate(*class, message),
        Act::LoseAnswer => {
            if let Some(lossy) = lossy {
                lossy.lose_next();
            }
        }
    }
}

/// Takes memory, and writes into it so that it is really there, until the kernel ends it.
fn exhaust() -> ! {
    let mut taken = Vec::new();
    loop {
        taken.push(vec![1_u8; 1 << 20]);
        hint::black_box(&taken);
    }
}
