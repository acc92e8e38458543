// Ctrl-C (SIGINT) and SIGTERM, answered at a safe place.
#pragma once

#include <cstdint>
#include <string>

namespace tersor::cli {

/// Thrown between two steps of work after a signal; main turns it into the status of the signal.
struct Interrupted {};

/// From now on SIGINT and SIGTERM set a flag. A second one, while the first is not yet answered, ends the process at once.
void watch_interrupt();
bool interrupt_pending();
/// Whether the pending signal is one that ends a conversation too, not only the reply.
bool termination_pending();
void clear_interrupt();
void throw_if_interrupted();
/// Calls f, which an interrupt ends early, or none at all: what it has collected by then is what there is.
template <class F>
void until_interrupted(F&& f) {
  try {
    throw_if_interrupted();
    f();
  } catch (const Interrupted&) {}  // still pending: callers ask
}

/// 128 and the number of the pending signal: 130 after Ctrl-C, 143 after SIGTERM.
int interrupt_status();
/// what: in the singular. Says "interrupted after 12 tokens" on standard error, and gives the status to end with.
int end_interrupted(int64_t count, const std::string& what);

}  // namespace tersor::cli
