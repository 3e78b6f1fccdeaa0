#pragma once

#include <chrono>
#include <condition_variable>
#include <cstddef>
#include <mutex>
#include <optional>
#include <string>
#include <thread>

namespace headroom::internal::cli {

/// A progress line on standard error for as long as the object lives: the elapsed time and, after a call of report(), the
/// number of finished items and an estimate of the remaining time. Nothing is printed in the first second, or if standard
/// error is no terminal. The line is erased at the end.
class Progress {
 public:
  explicit Progress(std::string activity);
  ~Progress();
  Progress(const Progress&) = delete;
  Progress& operator=(const Progress&) = delete;

  /// Sets the number of finished items, of `all`.
  void report(size_t done, size_t all);

 private:
  using Clock = std::chrono::steady_clock;

  void show_until_stopped();
  std::string line() const;

  std::string activity_;
  Clock::time_point start_;
  std::mutex mutex_;
  std::condition_variable wake_;
  bool stopped_ = false;
  size_t done_ = 0;
  size_t all_ = 0;
  std::optional<std::thread> thread_;  ///< writes the line; none without a terminal
};

}  // namespace headroom::internal::cli
