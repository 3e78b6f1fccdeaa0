#pragma once

#include <chrono>
#include <cstddef>
#include <string>

namespace headroom::cli {

/// Says on standard error how far something that takes long has come: on a terminal one line, written over and wiped at
/// the end; elsewhere a line every ten seconds. What is done within a second says nothing.
class Progress {
 public:
  explicit Progress(std::string what);
  ~Progress();
  Progress(const Progress&) = delete;
  Progress& operator=(const Progress&) = delete;

  void report(size_t done, size_t all);

 private:
  using Clock = std::chrono::steady_clock;
  std::string what_;
  bool terminal_;
  Clock::time_point start_;
  Clock::time_point next_;
  bool shown_ = false;
};

}  // namespace headroom::cli
