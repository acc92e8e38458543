// Ctrl-C as an exception at a safe place.
#pragma once

namespace tersor::cli {

/// Thrown between two steps of work after Ctrl-C; main turns it into status 130.
struct Interrupted {};

/// From now on Ctrl-C sets a flag. A second one, while the first is not yet answered, ends the process at once.
void watch_interrupt();
bool interrupt_pending();
void clear_interrupt();
void throw_if_interrupted();

}  // namespace tersor::cli
