#pragma once

#include <string>
#include <string_view>
#include <variant>

#include "headroom/core/chain.h"
#include "headroom/core/placement.h"
#include "headroom/core/schedule.h"

namespace headroom {

/// Graphs, chains, schedules and placements as JSON: headroom.graph/1, headroom.chain/1, headroom.schedule/1 and
/// headroom.placement/1 of docs/formats.md.
///
/// The readers are strict: they throw InvalidInput for anything outside the format. The message is one line of bounded
/// length with the `source` (a file name, which may be empty), the position, what was expected and what was found:
///
///     net.json: value 'a': bytes must be an integer from 0 to 9223372036854775807, found 1.5
///     net.json: op 'f2': inputs names 'b', which is not a value of the graph
///     net.json: line 7, column 3: not valid JSON: unexpected ','; expected '}'
///
/// The writers write the keys in the order of docs/formats.md, one value, op, stage, step or offset per line, and omit defaults.
/// Reading the text back gives an equal object. They throw InvalidInput if a name is empty or not UTF-8, and for a chain
/// that the format cannot express: a stage whose recording has a workspace of its own. Readers and writers take time
/// linear in the length of the text.
Graph read_graph_json(std::string_view text, const std::string& source);
Chain read_chain_json(std::string_view text, const std::string& source);

/// Reads a graph or a chain, as its "format" says.
std::variant<Graph, Chain> read_network_json(std::string_view text, const std::string& source);

/// Reads a schedule of `graph`. Throws InvalidInput if it names another graph, or ops or values that the graph does not
/// have. Does not check that the schedule is valid; verify() does.
Schedule read_schedule_json(std::string_view text, const std::string& source, const Graph& graph);

/// Reads a placement of `graph`. Throws InvalidInput if it names another graph, or values that the graph does not have.
/// Does not check that it is valid for a schedule; verify_placement() does.
Placement read_placement_json(std::string_view text, const std::string& source, const Graph& graph);

std::string write_json(const Graph& graph);
std::string write_json(const Chain& chain);
std::string write_json(const Graph& graph, const Schedule& schedule);
std::string write_json(const Graph& graph, const Placement& placement);

}  // namespace headroom
