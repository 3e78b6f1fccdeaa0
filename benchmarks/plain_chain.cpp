#include "benchmarks/plain_chain.h"

#include <limits>

namespace headroom::internal {

double plain_chain(const ChainNeeds& needs, int64_t capacity, const std::vector<int64_t>& forward_ns) {
  constexpr double kInfinity = std::numeric_limits<double>::infinity();
  const int length = needs.length;
  const auto side = static_cast<size_t>(length) + 1;
  const auto width = static_cast<size_t>(capacity) + 1;
  std::vector<double> table(side * side * width, kInfinity);
  const auto row = [&](int i, int l) {
    return &table[(static_cast<size_t>(i) * side + static_cast<size_t>(l)) * width];
  };
  std::vector<double> forward_before(side);
  for (size_t i = 1; i < side; ++i) forward_before[i] = forward_before[i - 1] + static_cast<double>(forward_ns[i - 1]);

  for (int i = 1; i <= length; ++i)
    for (int64_t m = needs.begin(i, i); m <= capacity; ++m) row(i, i)[m] = 0;
  for (int distance = 1; distance < length; ++distance) {
    for (int i = 1; i + distance <= length; ++i) {
      const int l = i + distance;
      double* values = row(i, l);
      const int64_t tape = needs.tape[static_cast<size_t>(i)];
      for (int64_t m = needs.begin(i, l); m <= capacity; ++m) {
        double best = kInfinity;
        if (m >= needs.record(i, l) && m >= tape) best = row(i + 1, l)[m - tape];
        for (int j = i; j < l; ++j) {
          const int64_t rest = m - needs.output[static_cast<size_t>(j)];
          if (rest < 0) continue;
          const double time = forward_before[static_cast<size_t>(j)] - forward_before[static_cast<size_t>(i) - 1] +
                              row(j + 1, l)[rest] + row(i, j)[m];
          if (time < best) best = time;
        }
        values[m] = best;
      }
    }
  }
  return row(1, length)[capacity];
}

}  // namespace headroom::internal
