"""The state of a job, worked out once from its events.

Causes judge it, views draw it.  In: a case with its events and facts.  Out: plain records (who
waits, who died, where the calls of the ranks part), computed once a case (`once`).  No verdicts, no
pictures.

Begin with `rank_states.rank_states`, which most causes ask; `alignment.align` compares the calls,
`alignment.clocks` the clocks of hosts.  Which rank is late is judged in `causes.slow_rank`.
"""
