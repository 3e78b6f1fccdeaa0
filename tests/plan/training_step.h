#pragma once

#include <algorithm>
#include <random>
#include <string>
#include <utility>
#include <vector>

#include "headroom/core/graph.h"

namespace headroom::internal::testing {

/// A forward graph by its edges (u, v), u < v, with sizes and times by vertex.
struct ForwardSpec {
  std::vector<int64_t> bytes;
  std::vector<std::pair<int, int>> edges;
  std::vector<int64_t> times;  ///< 1 for each vertex if empty

  int size() const { return static_cast<int>(bytes.size()); }
  std::string text() const {
    std::string out = "bytes";
    for (const int64_t size : bytes) out += " " + std::to_string(size);
    out += "; times";
    for (const int64_t time : times) out += " " + std::to_string(time);
    out += "; edges";
    for (const auto& [u, v] : edges) out += " " + std::to_string(u) + ">" + std::to_string(v);
    return out;
  }
};

inline ForwardSpec path(std::vector<int64_t> bytes) {
  ForwardSpec spec{std::move(bytes), {}, {}};
  for (int v = 1; v < spec.size(); ++v) spec.edges.emplace_back(v - 1, v);
  return spec;
}

/// Returns the training step of a forward graph. Op f{v} writes a{v} from the outputs of its predecessors, or from the
/// resident x if it has none. Then, from the last vertex to the first, b{v} reads a{v}, the inputs of f{v}, and g{w} of
/// every successor w, and writes g{v}, which is an output of the step if v has no predecessor. The values are x, a0, g0,
/// a1, g1, …
inline GraphSpec training_step(const ForwardSpec& forward) {
  GraphSpec spec;
  spec.name = "step";
  spec.values.push_back({.name = "x", .bytes = 1, .resident = true, .holds = {}});
  const int n = forward.size();
  const auto output = [](int v) { return value_id(static_cast<size_t>(2 * v) + 1); };
  const auto gradient = [](int v) { return value_id(static_cast<size_t>(2 * v) + 2); };
  std::vector<std::vector<ValueId>> reads(static_cast<size_t>(n));
  std::vector<std::vector<ValueId>> gradients(static_cast<size_t>(n));
  for (const auto& [u, v] : forward.edges) {
    reads[static_cast<size_t>(v)].push_back(output(u));
    gradients[static_cast<size_t>(u)].push_back(gradient(v));
  }
  for (int v = 0; v < n; ++v) {
    const auto k = static_cast<size_t>(v);
    const std::string number = std::to_string(v);
    spec.values.push_back({.name = "a" + number, .bytes = forward.bytes[k], .holds = {}});
    spec.values.push_back({.name = "g" + number, .bytes = forward.bytes[k], .holds = {}});
    if (reads[k].empty()) {
      reads[k].push_back(ValueId{0});
      spec.outputs.push_back(gradient(v));
    }
    Op op{.name = "f" + number, .inputs = reads[k], .outputs = {output(v)}, .overwrites = {}};
    op.time_ns = forward.times.empty() ? 1 : forward.times[k];
    spec.ops.push_back(std::move(op));
  }
  for (int v = n; v-- > 0;) {
    const auto k = static_cast<size_t>(v);
    Op op{.name = "b" + std::to_string(v),
          .phase = Phase::kBackward,
          .inputs = reads[k],
          .outputs = {gradient(v)},
          .overwrites = {}};
    op.inputs.push_back(output(v));
    op.inputs.insert(op.inputs.end(), gradients[k].begin(), gradients[k].end());
    op.time_ns = 1;
    spec.ops.push_back(std::move(op));
  }
  return spec;
}

/// Returns a random graph of `n` vertices in which each edge has a chance of `percent`. With `connected`, it has a single
/// source, which comes first, and a single target, which comes last.
inline ForwardSpec random_forward(std::mt19937_64& random, int n, uint64_t percent, uint64_t most_bytes,
                                  bool connected) {
  ForwardSpec spec;
  std::vector<int> readers(static_cast<size_t>(n), 0);
  std::vector<int> sources(static_cast<size_t>(n), 0);
  const auto add = [&](int u, int v) {
    if (std::ranges::find(spec.edges, std::pair(u, v)) != spec.edges.end()) return;
    spec.edges.emplace_back(u, v);
    ++readers[static_cast<size_t>(u)];
    ++sources[static_cast<size_t>(v)];
  };
  for (int v = 0; v < n; ++v) {
    spec.bytes.push_back(static_cast<int64_t>(random() % (most_bytes + 1)));
    spec.times.push_back(static_cast<int64_t>(random() % 10));
    for (int u = 0; u < v; ++u) {
      if (random() % 100 < percent) add(u, v);
    }
  }
  for (int v = 0; connected && v < n; ++v) {
    if (v > 0 && sources[static_cast<size_t>(v)] == 0) add(static_cast<int>(random() % static_cast<uint64_t>(v)), v);
  }
  for (int v = n - 1; connected && v-- > 0;) {
    if (readers[static_cast<size_t>(v)] == 0)
      add(v, v + 1 + static_cast<int>(random() % static_cast<uint64_t>(n - 1 - v)));
  }
  std::ranges::sort(spec.edges);
  return spec;
}

}  // namespace headroom::internal::testing
