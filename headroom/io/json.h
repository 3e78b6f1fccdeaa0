#pragma once

#include <string>
#include <string_view>
#include <variant>

#include "headroom/core/chain.h"
#include "headroom/core/schedule.h"

namespace headroom {

/// Graphs, chains and schedules as JSON: headroom.graph/1, headroom.chain/1 and headroom.schedule/1 of docs/formats.md.
///
/// The readers are strict: whatever is not in the format is InvalidInput, with one line of bounded length that names
/// the `source` (a file's name; may be empty), the place, what was expected and what was found:
///
///     net.json: value 'a': bytes must be an integer from 0 to 9223372036854775807, found 1.5
///     net.json: op 'f2': inputs names 'b', which is not a value of the graph
///     net.json: line 7, column 3: not valid JSON: unexpected ','; expected '}'
///
/// The writers give the keys in the order of docs/formats.md, one value, op, stage or step a line, and leave defaults
/// out. What they write is read back as the same thing. They throw InvalidInput where a name is empty or not
/// UTF-8, and for a chain that the format has no words for: a stage whose recording has a workspace of its own.
/// Readers and writers take time linear in the text.
Graph read_graph_json(std::string_view text, const std::string& source);
Chain read_chain_json(std::string_view text, const std::string& source);
std::variant<Graph, Chain> read_network_json(std::string_view text, const std::string& source);  ///< by its "format"

/// A schedule of `graph`. One that names another graph, or what the graph does not have, is InvalidInput;
/// whether it is valid is for verify() to say.
Schedule read_schedule_json(std::string_view text, const std::string& source, const Graph& graph);

std::string write_json(const Graph& graph);
std::string write_json(const Chain& chain);
std::string write_json(const Graph& graph, const Schedule& schedule);

}  // namespace headroom
