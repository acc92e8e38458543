#include "cli/interrupt.h"

#include <signal.h>
#include <unistd.h>

namespace tersor::cli {
namespace {

volatile sig_atomic_t pending = 0;

void on_interrupt(int) {
  if (pending) ::_exit(130);
  pending = 1;
}

}  // namespace

void watch_interrupt() {
  struct sigaction action {};
  action.sa_handler = on_interrupt;  // without SA_RESTART: a blocked read returns, so that a prompt can be abandoned
  sigemptyset(&action.sa_mask);
  ::sigaction(SIGINT, &action, nullptr);
}

bool interrupt_pending() { return pending != 0; }
void clear_interrupt() { pending = 0; }

void throw_if_interrupted() {
  if (pending) throw Interrupted{};
}

}  // namespace tersor::cli
