#pragma once

#include <cstdint>
#include <span>
#include <utility>
#include <vector>

namespace headroom {

/// Edges (a, b), a < b, between vertices that are numbered in a topological order.
using Edges = std::vector<std::pair<int, int>>;

/// Finds the largest proper segments of a node of a division tree that is neither linear nor a branch. The node's vertices
/// are 0..count-1 in topological order, the first and the last being its ends.
class Separation {
 public:
  /// What lies between two vertices and has edges only with them and among itself.
  struct Segment {
    int source, target;
    std::vector<int> inside;  ///< ascending
  };

  Separation(int count, const Edges& edges);

  /// Returns about how many steps largest_segments() takes: the vertices with more than two edges times the node's size.
  int64_t work() const;

  /// Two vertices are the ends of a segment when without them a part comes off that holds no end of the node. The
  /// largest segments have no edge in common; whatever else is one lies inside one of them.
  std::vector<Segment> largest_segments();

  /// Returns only the runs of vertices with two edges. O(size).
  std::vector<Segment> runs() const;

 private:
  /// A part that comes off without `source` and `target`, known by one of its vertices.
  struct Part {
    int source, target, member;
    int begin;  ///< where its vertices start in order_
    int size;
    int pair_size;  ///< of all parts of that pair
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

}  // namespace headroom
