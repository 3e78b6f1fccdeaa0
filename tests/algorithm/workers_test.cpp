#include "headroom/algorithm/workers.h"

#include <gtest/gtest.h>

#include <atomic>
#include <new>
#include <stdexcept>
#include <vector>

namespace headroom::internal {
namespace {

TEST(Workers, EachIsCalledOnce) {
  std::vector<int> calls(5, 0);
  run_workers(5, [&](int worker) { ++calls[static_cast<size_t>(worker)]; });
  EXPECT_EQ(calls, (std::vector<int>{1, 1, 1, 1, 1}));
  run_workers(0, [&](int worker) { ++calls[static_cast<size_t>(worker)]; });  // At least the calling thread works.
  EXPECT_EQ(calls[0], 2);
}

TEST(Workers, WhatOneThrowsComesOutAfterAllHaveEnded) {
  for (int thrower = 0; thrower < 4; ++thrower) {
    std::atomic<int> ended = 0;
    const auto work = [&](int worker) {
      if (worker == thrower) throw std::bad_alloc();
      ++ended;
    };
    EXPECT_THROW(run_workers(4, work), std::bad_alloc);
    EXPECT_EQ(ended, 3);
  }
}

TEST(Workers, TheFirstOfSeveralErrorsComesOut) {
  const auto work = [](int worker) {
    if (worker == 1) throw std::runtime_error("one");
    if (worker == 2) throw std::bad_alloc();
  };
  EXPECT_THROW(run_workers(3, work), std::runtime_error);
}

}  // namespace
}  // namespace headroom::internal
