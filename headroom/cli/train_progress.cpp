#include "headroom/cli/train_progress.h"

#include <unistd.h>

#include <iostream>

namespace headroom::cli {
namespace {

using std::chrono::milliseconds;
using std::chrono::seconds;

constexpr const char* kWipeLine = "\r\033[K";

}  // namespace

Progress::Progress(std::string what)
    : what_(std::move(what)),
      terminal_(isatty(STDERR_FILENO) == 1),
      start_(Clock::now()),
      next_(start_ + (terminal_ ? seconds(1) : seconds(10))) {}

Progress::~Progress() {
  if (terminal_ && shown_) std::cerr << kWipeLine << std::flush;
}

void Progress::report(size_t done, size_t all) {
  const Clock::time_point now = Clock::now();
  if (now < next_ || done == 0) return;
  next_ = now + (terminal_ ? milliseconds(200) : milliseconds(10'000));
  const auto elapsed_s = std::chrono::duration_cast<seconds>(now - start_).count();
  const auto left_s = elapsed_s * static_cast<int64_t>(all - done) / static_cast<int64_t>(done);
  std::cerr << (terminal_ ? kWipeLine : "") << what_ << ": " << done << " of " << all << ", " << elapsed_s
            << " s, about " << left_s << " s left" << (terminal_ ? "" : "\n") << std::flush;
  shown_ = true;
}

}  // namespace headroom::cli
