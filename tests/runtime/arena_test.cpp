#include "headroom/runtime/arena.h"

#include <ATen/core/Tensor.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/ones.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <functional>
#include <random>
#include <string>
#include <thread>

#include "headroom/runtime/meter.h"

namespace headroom::internal {
namespace {

const c10::Device kCpu(c10::DeviceType::CPU);

at::Tensor make_bytes(int64_t bytes) { return at::empty({bytes}, at::TensorOptions().dtype(at::kByte)); }

class ArenaTest : public ::testing::Test {
 protected:
  /// Runs both halves of a step, and returns its run.
  std::shared_ptr<ArenaRun> run(const std::function<void()>& forward, const std::function<void()>& backward) {
    std::shared_ptr<ArenaRun> run = arena->begin();
    {
      const ArenaScope scope(run.get(), Half::kForward);
      forward();
    }
    {
      const ArenaScope scope(run.get(), Half::kBackward);
      backward();
    }
    if (run) run->finish();
    return run;
  }

  /// A step that keeps two tensors from forward to backward, and returns an output and a gradient.
  void run_example() {
    run(
        [&] {
          at::Tensor a = make_bytes(100);
          b = make_bytes(200);
          a.reset();
          c = make_bytes(300);
          output = make_bytes(50);
        },
        [&] {
          b.reset();
          at::Tensor d = make_bytes(100);
          gradient = make_bytes(70);
          output.reset();
          c.reset();
        });
  }

  int64_t added_bytes() const { return meter.current_bytes() - start_bytes; }

  Meter meter{kCpu};
  std::shared_ptr<Arena> arena = std::make_shared<Arena>(kCpu, /*fills=*/true);
  int64_t start_bytes = meter.current_bytes();
  at::Tensor b, c, output, gradient;
};

TEST_F(ArenaTest, LaterStepsRunInOneBlockOfTheSizeThatTheFirstOneShows) {
  run_example();
  EXPECT_EQ(arena->memory(), std::nullopt);
  run_example();
  // Live together at most: b, c and the output, each at a multiple of 64 and b at the top.
  const ArenaMemory memory = arena->memory().value();
  EXPECT_EQ(memory, (ArenaMemory{320 + 64 + 200, 0, 0, 70}));
  gradient.reset();
  EXPECT_EQ(added_bytes(), 0);
  meter.reset_peak();
  std::vector<const void*> addresses;
  run(
      [&] {
        EXPECT_EQ(added_bytes(), 584);
        at::Tensor a = make_bytes(100);
        b = make_bytes(200);
        a.reset();
        c = make_bytes(300);
        output = make_bytes(50);
        for (const at::Tensor& tensor : {b, c, output}) addresses.push_back(tensor.const_data_ptr());
        EXPECT_EQ(added_bytes(), 584);
      },
      [&] {
        b.reset();
        at::Tensor d = make_bytes(100);
        EXPECT_EQ(added_bytes(), 584);
        gradient = make_bytes(70);
        EXPECT_EQ(added_bytes(), 654);
        output.reset();
        c.reset();
      });
  EXPECT_EQ(added_bytes(), 70);
  EXPECT_EQ(meter.peak_bytes() - start_bytes, 654);
  for (const void* address : addresses) EXPECT_EQ(reinterpret_cast<uintptr_t>(address) % 64, 0U);
  const auto [lowest, highest] = std::ranges::minmax(addresses);
  EXPECT_LT(static_cast<const char*>(highest) - static_cast<const char*>(lowest), 584);
  const ArenaStatistics statistics = arena->statistics();
  EXPECT_EQ(statistics.served, 5);
  EXPECT_EQ(statistics.native, 1);
  EXPECT_EQ(statistics.missed, 0);
  EXPECT_EQ(statistics.recordings, 2);
}

TEST_F(ArenaTest, WhatIsFreedOutsideOfTheHalvesIsNative) {
  at::Tensor between, kept, returned;
  const auto step = [&] {
    kept.reset();
    returned.reset();
    const std::shared_ptr<ArenaRun> now = arena->begin();
    {
      const ArenaScope scope(now.get(), Half::kForward);
      between = make_bytes(10);
      b = make_bytes(20);
      returned = make_bytes(40);
      now->leave_native(returned.storage().data());
    }
    between.reset();
    {
      const ArenaScope scope(now.get(), Half::kBackward);
      b.reset();
      returned.reset();
      kept = make_bytes(30);
    }
    now->finish();
  };
  step();
  step();
  EXPECT_EQ(arena->memory(), (ArenaMemory{20, 50, 50, 0}));  // Backward frees 40 and then adds 30.
  step();
  step();
  EXPECT_EQ(arena->statistics().served, 2);
  EXPECT_EQ(arena->statistics().native, 6);
  EXPECT_EQ(arena->statistics().missed, 0);
  EXPECT_EQ(added_bytes(), 30);
}

TEST_F(ArenaTest, MemoryFromOutsideThatAHalfFreesLowersWhatIsBesideTheBlock) {
  for (int i = 0; i < 2; ++i) {
    at::Tensor given = make_bytes(1000);
    run([&] { b = make_bytes(10); },
        [&] {
          given.reset();
          gradient = make_bytes(300);
          b.reset();
        });
  }
  EXPECT_EQ(arena->memory(), (ArenaMemory{10, 0, 0, 0}));
}

TEST_F(ArenaTest, RequestsThatDoNotMatchAreNative) {
  const auto step = [&](const std::vector<int64_t>& sizes) {
    run(
        [&] {
          std::vector<at::Tensor> tensors;
          for (const int64_t size : sizes) tensors.push_back(make_bytes(size));
          for (at::Tensor& tensor : tensors) tensor.fill_(1);
        },
        [] {});
    return arena->statistics();
  };
  step({1, 2, 9, 3, 4});  // A first step that differs.
  step({1, 2, 3, 4});
  EXPECT_EQ(arena->memory(), std::nullopt);
  EXPECT_EQ(step({1, 2, 3, 4}).block_bytes, 64 * 3 + 1);
  ArenaStatistics statistics = step({1, 7, 3, 4});  // Another size.
  EXPECT_EQ(std::pair(statistics.served, statistics.missed), std::pair(int64_t{3}, int64_t{1}));
  statistics = step({1, 2, 3, 4});
  EXPECT_EQ(std::pair(statistics.served, statistics.missed), std::pair(int64_t{7}, int64_t{1}));
  statistics = step({1, 3, 4});  // One that is not made.
  EXPECT_EQ(std::pair(statistics.served, statistics.missed), std::pair(int64_t{10}, int64_t{1}));
  statistics = step({1, 9, 2, 3, 4, 4});  // Two more.
  EXPECT_EQ(std::pair(statistics.served, statistics.missed), std::pair(int64_t{14}, int64_t{3}));
  EXPECT_EQ(statistics.recordings, 3);
  step({1, 9, 2, 3, 4, 4});  // The second in a row: the next ones record.
  EXPECT_EQ(arena->memory(), std::nullopt);
  step({1, 9, 2, 3, 4, 4});
  statistics = step({1, 9, 2, 3, 4, 4});
  EXPECT_EQ(statistics.recordings, 5);
  EXPECT_EQ(statistics.block_bytes, 64 * 5 + 1);
  EXPECT_EQ(step({1, 9, 2, 3, 4, 4}).missed, statistics.missed);
}

TEST_F(ArenaTest, RecordsABoundedNumberOfTimes) {
  std::mt19937_64 random(3);
  for (int i = 0; i < 50; ++i) run([&] { make_bytes(1 + static_cast<int64_t>(random() % 1000)); }, [] {});
  EXPECT_EQ(arena->statistics().recordings, Arena::kMostRecordings);
  EXPECT_TRUE(arena->memory().has_value());
}

TEST_F(ArenaTest, AnAddressThatIsStillInUseIsNotGivenAgain) {
  at::Tensor kept;
  const auto step = [&](bool keeps) {
    run(
        [&] {
          at::Tensor first = make_bytes(64).fill_(1);
          if (keeps) kept = first;
          first.reset();
          at::Tensor second = make_bytes(64).fill_(2);
        },
        [] {});
  };
  step(false);
  step(false);
  EXPECT_EQ(arena->memory()->block_bytes, 64);
  step(true);
  EXPECT_EQ(arena->statistics().missed, 1);
  EXPECT_TRUE(kept.eq(1).all().item<bool>());
  EXPECT_EQ(added_bytes(), 64);  // The block, which the tensor keeps.
  step(false);
  EXPECT_EQ(arena->statistics().missed, 1);
  EXPECT_TRUE(kept.eq(1).all().item<bool>());
  arena.reset();
  kept.fill_(3);
  EXPECT_EQ(added_bytes(), 64);
  kept.reset();
  EXPECT_EQ(added_bytes(), 0);
}

TEST_F(ArenaTest, StepsInFlightNestAndCrossingsAreNative) {
  const auto inner = std::make_shared<Arena>(kCpu);
  at::Tensor of_inner;
  const auto nested = [&] {
    run(
        [&] {
          b = make_bytes(10);
          const std::shared_ptr<ArenaRun> other = inner->begin();
          {
            const ArenaScope scope(other.get(), Half::kForward);
            of_inner = make_bytes(20);
          }
          {
            const ArenaScope scope(other.get(), Half::kBackward);
            of_inner.reset();
          }
          other->finish();
          c = make_bytes(30);
        },
        [&] {
          b.reset();
          c.reset();
        });
  };
  for (int i = 0; i < 4; ++i) nested();
  EXPECT_EQ(arena->memory(), (ArenaMemory{64 + 10, 0, 0, 0}));
  EXPECT_EQ(inner->memory(), (ArenaMemory{20, 0, 0, 0}));
  EXPECT_EQ(arena->statistics().served, 4);
  EXPECT_EQ(inner->statistics().served, 2);
  EXPECT_EQ(arena->statistics().missed + inner->statistics().missed, 0);

  // A second step of the same arena, begun while the first one is in flight, runs without it.
  const std::shared_ptr<ArenaRun> first = arena->begin();
  EXPECT_EQ(arena->begin(), nullptr);
  EXPECT_EQ(arena->statistics().overtaken, 1);
  const int64_t before = meter.current_bytes();
  const ArenaScope none(nullptr, Half::kForward);
  const at::Tensor native = make_bytes(10);
  EXPECT_EQ(meter.current_bytes() - before, 10);
}

TEST_F(ArenaTest, OtherThreadsFreeAndAreNotServed) {
  const auto step = [&] {
    run([&] { b = make_bytes(1000).fill_(1); },
        [&] {
          std::thread thread([&] {
            b.reset();
            EXPECT_EQ(ArenaScope::innermost(), nullptr);
            c = make_bytes(500);
          });
          thread.join();
          gradient = make_bytes(1000).fill_(2);
          gradient.reset();
          c.reset();
        });
  };
  step();
  step();
  EXPECT_EQ(arena->memory()->block_bytes, 1000);
  step();
  EXPECT_EQ(arena->statistics().served, 2);
  EXPECT_EQ(arena->statistics().missed, 0);
  EXPECT_EQ(added_bytes(), 0);
}

TEST_F(ArenaTest, AStepThatFailsOrHasNoBackwardTeachesNothing) {
  const auto fail = [&] { run([&] { b = make_bytes(10); }, [] { throw std::runtime_error("failed"); }); };
  EXPECT_THROW(fail(), std::runtime_error);
  b.reset();
  EXPECT_EQ(arena->memory(), std::nullopt);
  run_example();
  EXPECT_THROW(fail(), std::runtime_error);
  b.reset();
  run_example();
  gradient.reset();
  EXPECT_THROW(fail(), std::runtime_error);
  b.reset();
  EXPECT_EQ(added_bytes(), 0);
  run_example();
  gradient.reset();
  EXPECT_EQ(arena->statistics().recordings, 2);
  EXPECT_EQ(arena->statistics().served, 5);
  EXPECT_EQ(arena->statistics().missed, 1);  // In the step that failed.
}

TEST_F(ArenaTest, FreedMemoryIsFilled) {
  const float* freed = nullptr;
  const auto step = [&] {
    run(
        [&] {
          b = at::ones({4});
          const at::Tensor first = at::ones({4});
          freed = first.const_data_ptr<float>();
        },
        [&] { b.reset(); });
  };
  step();
  step();
  const std::shared_ptr<ArenaRun> now = arena->begin();
  const ArenaScope scope(now.get(), Half::kForward);
  b = at::ones({4});
  const at::Tensor second = at::empty({4});
  EXPECT_TRUE(std::isnan(second.const_data_ptr<float>()[3]));
  b.reset();
}

/// Random steps, whose later runs differ from the recorded one. Every tensor has its own contents until it is freed.
TEST_F(ArenaTest, NoTwoTensorsOfRandomStepsShareMemory) {
  for (unsigned seed = 0; seed < 200; ++seed) {
    arena = std::make_shared<Arena>(kCpu, /*fills=*/true);
    for (int repeat = 0; repeat < 7; ++repeat) {
      std::mt19937 random(seed);
      std::mt19937 noise(1000 * seed + static_cast<unsigned>(repeat));
      const bool is_noisy = repeat >= 3;
      std::vector<std::pair<at::Tensor, int>> live;
      int contents = 0;
      const auto half = [&] {
        for (int i = 0; i < 40; ++i) {
          if (is_noisy && noise() % 10 == 0) continue;
          const bool frees = random() % 2 == 0;
          auto size = static_cast<int64_t>(1 + random() % 500);
          if (is_noisy && noise() % 10 == 0) size += 1;
          if (!frees || live.empty()) {
            contents = (contents + 1) % 251;
            live.emplace_back(make_bytes(size).fill_(contents), contents);
          } else {
            std::swap(live[random() % live.size()], live.back());
            ASSERT_TRUE(live.back().first.eq(live.back().second).all().item<bool>()) << "seed " << seed;
            live.pop_back();
          }
        }
      };
      run(half, half);
      for (const auto& [tensor, value] : live)
        ASSERT_TRUE(tensor.eq(value).all().item<bool>()) << "seed " << seed << ", repeat " << repeat;
      if (repeat == 2) {
        ASSERT_EQ(arena->statistics().missed, 0) << "seed " << seed;
      }
    }
  }
  arena.reset();
  EXPECT_EQ(added_bytes(), 0);
}

}  // namespace
}  // namespace headroom::internal
