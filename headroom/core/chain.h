#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "headroom/core/graph.h"

namespace headroom {

/// One stage of a chain, whose inside is opaque.
struct Stage {
  std::string name;
  int64_t forward_ns = 0;
  int64_t backward_ns = 0;
  int64_t output_bytes = 0;
  int64_t tape_bytes = 0;  ///< Bytes that forward saves for backward, the output included.
  int64_t forward_workspace_bytes = 0;
  int64_t backward_workspace_bytes = 0;
  int64_t gradient_bytes = 0;  ///< Bytes of the gradients of the stage's parameters.
  /// Workspace of recording, where it differs from forward_workspace_bytes. Temporaries that an unrecorded forward
  /// frees are workspace; a recorded forward may have them in its tape.
  std::optional<int64_t> record_workspace_bytes = std::nullopt;
  bool operator==(const Stage&) const = default;

  int64_t effective_record_workspace_bytes() const { return record_workspace_bytes.value_or(forward_workspace_bytes); }
};

/// A sequence of stages, of which the last computes the loss.
struct Chain {
  std::string name;
  int64_t resident_bytes = 0;
  int64_t input_bytes = 0;
  int64_t input_gradient_bytes = 0;
  std::vector<Stage> stages;
  bool operator==(const Chain&) const = default;

  int length() const { return static_cast<int>(stages.size()); }
  /// Returns stage i, counted from 1 as everywhere in chains.
  const Stage& stage(int i) const { return stages[static_cast<size_t>(i) - 1]; }
  /// Returns the bytes of a{i}, the output of stage i, or of the input for i = 0.
  int64_t output_bytes(int i) const { return i == 0 ? input_bytes : stage(i).output_bytes; }
  /// Returns the bytes of g{i}, the gradient of a{i}.
  int64_t gradient_bytes(int i) const { return i == 0 ? input_gradient_bytes : stage(i).output_bytes; }
};

/// Returns the first rule that a chain breaks, or none. It needs at least one stage; no negative size or time
/// (workspaces excepted); tape_bytes >= output_bytes; and sums of the bytes and of the times in its graph that fit
/// int64. Stages may share a name.
std::optional<std::string> lint(const Chain& chain);

/// The ids of a chain's ops and values in its graph. The ops are F1, R1, F2, R2, …, B{L}, …, B1, and the values are w,
/// a0, g{L}, then a{i}, t{i}, g{i-1}, p{i} for i = 1..L.
class ChainIds {
 public:
  explicit ChainIds(int length) : length_(length) {}
  OpId forward(int i) const { return static_cast<OpId>(2 * i - 2); }
  OpId record(int i) const { return static_cast<OpId>(2 * i - 1); }
  OpId backward(int i) const { return static_cast<OpId>(3 * length_ - i); }
  ValueId weights() const { return ValueId{0}; }
  ValueId output(int i) const { return static_cast<ValueId>(i == 0 ? 1 : 4 * i - 1); }  ///< The id of a{i}, 0..L.
  ValueId tape(int i) const { return static_cast<ValueId>(4 * i); }                     ///< The id of t{i}, 1..L.
  ValueId gradient(int i) const {
    return static_cast<ValueId>(i == length_ ? 2 : 4 * i + 5);
  }                                                                                    ///< The id of g{i}, 0..L.
  ValueId parameter_gradient(int i) const { return static_cast<ValueId>(4 * i + 2); }  ///< The id of p{i}, 1..L.

 private:
  int length_;
};

/// Returns the training step of a chain, with the ids of ChainIds. F{i} runs stage i without recording, R{i} records
/// its tape, and B{i} is its backward. Throws InvalidInput with what lint() finds.
Graph to_graph(const Chain& chain);

/// A chain whose graph equals a given graph except for names and the order of values.
struct ChainMatch {
  /// The chain. Its stages have the names of the graph's F ops, and record_workspace_bytes is set only where it
  /// differs.
  Chain chain;
  Graph graph;  ///< The given graph with the ids of ChainIds.
};
/// Returns the chain that a graph is, or none.
std::optional<ChainMatch> find_chain(const Graph& graph);

}  // namespace headroom
