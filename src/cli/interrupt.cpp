#include "cli/interrupt.h"

#include <signal.h>
#include <unistd.h>

#include "cli/output.h"

namespace tersor::cli {
namespace {

volatile sig_atomic_t pending = 0;  // the number of the signal

void on_interrupt(int signal) {
  if (pending) ::_exit(128 + signal);
  pending = signal;
}

}  // namespace

void watch_interrupt() {
  struct sigaction action {};
  action.sa_handler = on_interrupt;  // without SA_RESTART: a blocked read returns, so that a prompt can be abandoned
  sigemptyset(&action.sa_mask);
  ::sigaction(SIGINT, &action, nullptr);
  ::sigaction(SIGTERM, &action, nullptr);
}

bool interrupt_pending() { return pending != 0; }
bool termination_pending() { return pending == SIGTERM; }
void clear_interrupt() { pending = 0; }

void throw_if_interrupted() {
  if (pending) throw Interrupted{};
}

int interrupt_status() { return 128 + pending; }

int end_interrupted(int64_t count, const std::string& what) {
  note("interrupted after " + std::to_string(count) + " " + what + (count == 1 ? "" : "s"));
  return interrupt_status();
}

}  // namespace tersor::cli
