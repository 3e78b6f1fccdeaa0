#include "headroom/cli/progress.h"

#include <unistd.h>

#include <iostream>
#include <new>
#include <system_error>

namespace headroom::internal::cli {
namespace {

using std::chrono::milliseconds;

constexpr const char* kWipeLine = "\r\033[K";

}  // namespace

Progress::Progress(std::string activity) : activity_(std::move(activity)), start_(Clock::now()) {
  if (isatty(STDERR_FILENO) != 1) return;
  try {
    thread_.emplace([this] { show_until_stopped(); });
  } catch (const std::system_error&) {
    thread_.reset();  // The system is out of threads; work without a progress line.
  }
}

Progress::~Progress() {
  if (!thread_) return;
  {
    const std::lock_guard lock(mutex_);
    stopped_ = true;
  }
  wake_.notify_one();
  thread_->join();
}

void Progress::report(size_t done, size_t all) {
  const std::lock_guard lock(mutex_);
  done_ = done;
  all_ = all;
}

void Progress::show_until_stopped() {
  std::unique_lock lock(mutex_);
  bool shown = false;
  auto pause = milliseconds(1000);
  while (!wake_.wait_for(lock, pause, [this] { return stopped_; })) {
    try {
      std::cerr << kWipeLine << line() << std::flush;
    } catch (const std::bad_alloc&) {
      break;  // The work itself reports that memory has run out.
    }
    shown = true;
    pause = milliseconds(200);
  }
  if (shown) std::cerr << kWipeLine << std::flush;
}

std::string Progress::line() const {
  const auto elapsed_ms = std::chrono::duration_cast<milliseconds>(Clock::now() - start_).count();
  const std::string elapsed = std::to_string(elapsed_ms / 1000) + " s";
  if (done_ == 0) return activity_ + ": " + elapsed;
  const auto left_ms = elapsed_ms * static_cast<int64_t>(all_ - done_) / static_cast<int64_t>(done_);
  return activity_ + ": " + std::to_string(done_) + " of " + std::to_string(all_) + ", " + elapsed + ", about " +
         std::to_string(left_ms / 1000) + " s left";
}

}  // namespace headroom::internal::cli
