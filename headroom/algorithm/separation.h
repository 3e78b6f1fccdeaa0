#pragma once

#include <cstdint>
#include <span>
#include <utility>
#include <vector>

namespace headroom::internal {

/// Edges (a, b), a < b, between vertices that are numbered in a topological order.
using Edges = std::vector<std::pair<int, int>>;

/// Finds the largest proper segments of a node of a division tree that is neither linear nor a branch. The node's
/// vertices are 0..count-1 in topological order; the first and the last are its ends.
class Separation {
 public:
  /// The vertices between two vertices that have edges only with those two and among themselves.
  struct Segment {
    int source, target;
    std::vector<int> inside;  ///< Ascending.
  };

  Separation(int count, const Edges& edges);

  /// Returns about how many steps largest_segments() takes: the number of vertices with more than two edges times the
  /// node's size.
  int64_t work() const;

  /// Returns the largest segments. Two vertices are the ends of a segment if removing them disconnects a part that
  /// contains neither end of the node. The largest segments have no edge in common, and every other segment lies inside
  /// one of them.
  std::vector<Segment> largest_segments();

  /// Returns only the segments that are paths of vertices with two edges. Takes O(size).
  std::vector<Segment> runs() const;

 private:
  /// A part that is disconnected by removing `source` and `target`, identified by one of its vertices.
  struct Part {
    int source, target, member;
    int begin;  ///< Position of its first vertex in order_.
    int size;
    int pair_size;  ///< Number of vertices in all parts of that pair.
  };

  std::span<const int> neighbours(int v) const;
  bool is_joint(int v) const;
  int neighbour(int v, bool later) const;
  void find_parts(int u, std::vector<Part>& parts);
  void flood(const Part& part, std::vector<uint8_t>& covered, std::vector<int>& inside) const;

  int count_;
  std::vector<size_t> begin_;
  std::vector<int> neighbours_;
  std::vector<int> number_, low_, parent_, order_;
  std::vector<size_t> seen_;
};

}  // namespace headroom::internal
