#include <gtest/gtest.h>

#include <algorithm>
#include <limits>
#include <string>
#include <vector>

#include "headroom/plan/chain/needs.h"
#include "headroom/plan/chain/steps.h"
#include "headroom/plan/chain/table.h"
#include "tests/plan/random_chain.h"

namespace headroom::internal {
namespace {

using testing::deep_chain;
using testing::Random;
using testing::random_chain;
using testing::text_of;

constexpr double kInfinity = std::numeric_limits<double>::infinity();

/// Computes the recurrence of table.h without blocks, tiles and skipping.
std::vector<double> plain_table(const ChainNeeds& needs, int64_t capacity, const std::vector<int64_t>& forward_ns) {
  const auto width = static_cast<size_t>(capacity + 1);
  const auto length = static_cast<size_t>(needs.length);
  std::vector<double> table((length + 2) * (length + 2) * width, kInfinity);
  const auto cell = [&](int i, int l, int64_t m) -> double& {
    return table[(static_cast<size_t>(i) * (length + 2) + static_cast<size_t>(l)) * width + static_cast<size_t>(m)];
  };
  for (int i = needs.length; i >= 1; --i) {
    for (int l = i; l <= needs.length; ++l) {
      for (int64_t m = needs.begin(i, l); m <= capacity; ++m) {
        double best = i == l ? 0 : kInfinity;
        const int64_t beside_tape = m - needs.tape[static_cast<size_t>(i)];
        if (i < l && m >= needs.record(i, l) && beside_tape >= 0) best = cell(i + 1, l, beside_tape);
        double forward_sum_ns = 0;
        for (int j = i; j < l; ++j) {
          forward_sum_ns += static_cast<double>(forward_ns[static_cast<size_t>(j) - 1]);
          const int64_t beside_output = m - needs.output[static_cast<size_t>(j)];
          if (beside_output >= 0) best = std::min(best, forward_sum_ns + cell(j + 1, l, beside_output) + cell(i, j, m));
        }
        cell(i, l, m) = best;
      }
    }
  }
  return table;
}

/// Compares the table with the recurrence. Times that do not fit Number are infinite in the table.
template <typename Number>
void expect_table_is_plain(const Chain& chain, int64_t slot_bytes, int64_t capacity, int threads) {
  std::vector<int64_t> forward_ns;
  for (const Stage& stage : chain.stages) forward_ns.push_back(stage.forward_ns);
  const ChainNeeds needs = ChainMoments(chain).needs(slot_bytes);
  const SegmentArray<int64_t> min_memory = least_memory(needs);
  const std::vector<double> expected = plain_table(needs, capacity, forward_ns);
  const auto width = static_cast<size_t>(capacity + 1);
  const auto stride = static_cast<size_t>(needs.length) + 2;
  for (const InstructionSet instruction_set : supported_instruction_sets()) {
    const ChainTable<Number> table(needs, capacity, min_memory, forward_ns, size_t{1} << 30,
                                   {threads, instruction_set});
    for (int i = 1; i <= needs.length; ++i) {
      double forward_sum_ns = 0;
      for (int l = 1; l <= needs.length; ++l) {
        forward_sum_ns += static_cast<double>(forward_ns[static_cast<size_t>(l) - 1]);
        if (l < i) continue;
        const int64_t max_memory = capacity - needs.output[static_cast<size_t>(i) - 1];
        for (int64_t m = 0; m <= max_memory; ++m) {
          double value =
              expected[(static_cast<size_t>(i) * stride + static_cast<size_t>(l)) * width + static_cast<size_t>(m)];
          if (value + forward_sum_ns >= ChainTable<Number>::kMostNs) value = kInfinity;
          ASSERT_EQ(table.extra_ns(i, l, m), value)
              << "instruction set " << static_cast<int>(instruction_set) << " segment " << i << ".." << l << " m " << m;
        }
      }
    }
  }
}

TEST(ChainTable, EqualsThePlainRecurrenceWithEveryInstructionSet) {
  for (uint64_t seed = 1; seed <= 25; ++seed) {
    Random random(seed);
    Chain chain = random_chain(random, static_cast<int>(random.between(1, 70)));
    const int64_t slot_bytes = random.between(1, 3);
    const int64_t capacity = random.between(0, 200);
    const int threads = static_cast<int>(random.between(1, 3));
    SCOPED_TRACE("seed " + std::to_string(seed) + "\n" + text_of(chain));
    expect_table_is_plain<uint32_t>(chain, slot_bytes, capacity, threads);
    expect_table_is_plain<double>(chain, slot_bytes, capacity, threads);
    // Times so long that only some of them fit uint32_t.
    for (Stage& stage : chain.stages) stage.forward_ns *= 3'000'000;
    expect_table_is_plain<uint32_t>(chain, slot_bytes, capacity, threads);
    if (HasFailure()) break;
  }
  expect_table_is_plain<uint32_t>(deep_chain(120), 200'000, 160, 2);
  expect_table_is_plain<double>(deep_chain(120), 200'000, 160, 2);
}

TEST(ChainSteps, NeverDropsWhatMustStay) {
  ChainSteps steps(2);
  const ChainIds ids(2);
  steps.drop_output(0);
  steps.drop_gradient(0);
  steps.drop_gradient(2);
  steps.drop_output(2);
  steps.drop_gradient(1);
  steps.backward_and_drop(2);
  const std::vector<Step> expected = {Step::drop(ids.output(2)), Step::drop(ids.gradient(1)),
                                      Step::run(ids.backward(2)), Step::drop(ids.tape(2)), Step::drop(ids.output(2))};
  EXPECT_EQ(steps.take().steps, expected);
  EXPECT_TRUE(steps.take().steps.empty());
}

}  // namespace
}  // namespace headroom::internal
