// Measures division-tree and lower-sets on graphs like those of residual networks.
#include <benchmark/benchmark.h>

#include <string>
#include <vector>

#include "headroom/core/graph.h"
#include "headroom/plan/graph/division_tree.h"
#include "headroom/plan/graph/lower_sets.h"

namespace headroom::internal {
namespace {

/// Returns the training step of a ResNet of bottleneck blocks at 224x224, batch 32: an op per convolution, normalisation,
/// activation and addition (about 350 forward ops for ResNet-101's 3, 4, 23, 3 blocks), and a backward op for each.
/// An op takes a nanosecond per byte, a convolution ten.
class ResNet {
 public:
  explicit ResNet(const std::vector<int>& blocks) {
    spec_.name = "resnet";
    spec_.values.push_back({.name = "x", .bytes = 4 * 32 * 3 * 224 * 224, .resident = true, .holds = {}});
    int64_t side = 112;
    int last = unit({-1}, 64, side, 10, true);
    side = 56;
    last = add({last}, 64, side, 1);
    int64_t channels = 64;
    for (size_t stage = 0; stage < blocks.size(); ++stage) {
      for (int block = 0; block < blocks[stage]; ++block) {
        const int64_t old_side = side;
        if (block == 0 && stage > 0) side /= 2;
        int inner = unit({last}, channels, old_side, 10, true);
        inner = unit({inner}, channels, side, 10, true);
        inner = unit({inner}, 4 * channels, side, 10, false);
        const int shortcut = block == 0 ? unit({last}, 4 * channels, side, 10, false) : last;
        last = add({inner, shortcut}, 4 * channels, side, 1);
        last = add({last}, 4 * channels, side, 1);
      }
      channels *= 2;
    }
    last = add({last}, 2048, 1, 1);
    last = add({last}, 1000, 1, 10);
    add({last}, 1, 1, 1);
  }

  Graph graph() const {
    GraphSpec spec = spec_;
    const size_t n = reads_.size();
    for (size_t v = n; v-- > 0;) {
      Op op{.name = "b" + std::to_string(v),
            .phase = Phase::kBackward,
            .inputs = spec.ops[v].inputs,
            .outputs = {},
            .overwrites = {}};
      op.inputs.push_back(output(static_cast<int>(v)));
      for (const int reader : readers_[v]) op.inputs.push_back(value_id(n + 1 + static_cast<size_t>(reader)));
      op.outputs = {value_id(n + 1 + v)};
      op.time_ns = 2 * spec.ops[v].time_ns;
      spec.ops.push_back(std::move(op));
    }
    for (size_t v = 0; v < n; ++v) {
      spec.values.push_back({.name = "g" + std::to_string(v), .bytes = spec.values[v + 1].bytes, .holds = {}});
    }
    spec.outputs = {value_id(n + 1)};
    return Graph(std::move(spec));
  }

 private:
  static ValueId output(int v) { return value_id(static_cast<size_t>(v + 1)); }

  /// Adds a forward op. The input -1 is the batch.
  int add(const std::vector<int>& reads, int64_t channels, int64_t side, int64_t time_per_byte) {
    const int v = static_cast<int>(reads_.size());
    const int64_t bytes = 4 * 32 * channels * side * side;
    spec_.values.push_back({.name = "a" + std::to_string(v), .bytes = bytes, .holds = {}});
    Op op{.name = "f" + std::to_string(v), .inputs = {}, .outputs = {output(v)}, .overwrites = {}};
    for (const int u : reads) {
      op.inputs.push_back(output(u));
      if (u >= 0) readers_[static_cast<size_t>(u)].push_back(v);
    }
    op.time_ns = bytes * time_per_byte;
    spec_.ops.push_back(std::move(op));
    reads_.push_back(reads);
    readers_.emplace_back();
    return v;
  }

  /// Adds a convolution, a normalisation and, optionally, an activation.
  int unit(const std::vector<int>& reads, int64_t channels, int64_t side, int64_t time_per_byte, bool activation) {
    int v = add(reads, channels, side, time_per_byte);
    v = add({v}, channels, side, 1);
    return activation ? add({v}, channels, side, 1) : v;
  }

  GraphSpec spec_;
  std::vector<std::vector<int>> reads_;
  std::vector<std::vector<int>> readers_;
};

Graph resnet(int64_t depth) {
  return ResNet(depth == 50    ? std::vector<int>{3, 4, 6, 3}
                : depth == 101 ? std::vector<int>{3, 4, 23, 3}
                               : std::vector<int>{30, 40, 230, 30})
      .graph();
}

void division_tree_resnet(benchmark::State& state) {
  const Graph graph = resnet(state.range(0));
  for (auto _ : state) benchmark::DoNotOptimize(plan_division_tree(graph, {}));
  state.counters["ops"] = static_cast<double>(graph.ops().size());
}
BENCHMARK(division_tree_resnet)->Arg(50)->Arg(101)->Arg(1001)->Unit(benchmark::kMillisecond);

void lower_sets_resnet(benchmark::State& state) {
  const Graph graph = resnet(state.range(0));
  for (auto _ : state) benchmark::DoNotOptimize(plan_lower_sets(graph, {}));
  state.counters["ops"] = static_cast<double>(graph.ops().size());
}
BENCHMARK(lower_sets_resnet)->Arg(50)->Arg(101)->Unit(benchmark::kMillisecond);

void least_cut_uniform(benchmark::State& state) {
  const std::vector<int64_t> sizes(static_cast<size_t>(state.range(0)), 1000);
  for (auto _ : state) benchmark::DoNotOptimize(least_cut(sizes));
}
BENCHMARK(least_cut_uniform)->Arg(100)->Arg(1000)->Arg(10'000)->Unit(benchmark::kMillisecond);

}  // namespace
}  // namespace headroom::internal
