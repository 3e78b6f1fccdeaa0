#pragma once

#include <chrono>
#include <condition_variable>
#include <cstddef>
#include <mutex>
#include <optional>
#include <string>
#include <thread>

namespace headroom::cli {

/// Says on standard error, where that is a terminal, that something which takes long is going on, for how long, and,
/// where report() is called, how much of it is done and about how long the rest will take: one line, written over and
/// wiped at the end. What is done within a second says nothing, and so does all of it elsewhere than on a terminal.
class Progress {
 public:
  explicit Progress(std::string what);
  ~Progress();
  Progress(const Progress&) = delete;
  Progress& operator=(const Progress&) = delete;

  void report(size_t done, size_t all);

 private:
  using Clock = std::chrono::steady_clock;

  void show_until_stopped();
  std::string line() const;

  std::string what_;
  Clock::time_point start_;
  std::mutex mutex_;
  std::condition_variable wake_;
  bool stopped_ = false;
  size_t done_ = 0;
  size_t all_ = 0;
  std::optional<std::thread> thread_;  ///< on a terminal
};

}  // namespace headroom::cli
