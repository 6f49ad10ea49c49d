//! Whoever stays beside the programs says when their pool's name leads elsewhere (D88).

use std::io::{Write, stderr};

use nacre_fs::Fs;
use nacre_volume::Strayed;

/// What was said of the names of a pool's devices.
#[derive(Default)]
pub struct Names {
    told: Option<Strayed>,
}

impl Names {
    /// Looks, and says what is new.
    pub fn look(&mut self, fs: &Fs) {
        let found = fs.store().volume().strayed();
        let what = found.as_ref().map(|(_, what)| *what);
        if let Some((path, what)) = found
            && self.told != Some(what)
        {
            let (path, means) = (path.display(), meaning(what));
            let _nobody_hears = writeln!(stderr(), "nacre: {path}: {means}");
        }
        self.told = what;
    }
}

fn meaning(what: Strayed) -> &'static str {
    match what {
        Strayed::Gone => {
            "was removed, or has another name now; programs that use the pool go on with it, and no others find it. \
             Give it its name back. If it was removed, copy what you need out of the pool before they end"
        }
        Strayed::Another => {
            "another file has this name now; programs that use the pool go on with the one before, and new ones are refused. \
             End them, and start `nacre run` or `nacre mount` again to use what is there now"
        }
        Strayed::WrittenOver => {
            "was cut or written over; what programs store is not kept. \
             Copy what you need out of the pool before they end"
        }
    }
}
