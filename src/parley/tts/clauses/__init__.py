"""Speech from networks that synthesize a clause at a time.

A text is cut into clauses, and one thread synthesizes them one after the other. Between the pieces of several
requests it chooses the one whose audio runs out first::

    SpeakRequest ──► pronounce ──► splitting ──► ClauseSynthesizer ──► ClauseNetwork (onnxruntime)
                                                     │    ▲ stop: within the network's next operator
                  SpeechChunk ◄──── pauses ◄─────────┘    └── ClauseSound: pieces, and where its words begin

A synthesizer of this kind is one class with the interface :class:`parley.tts.clauses.network.ClauseNetwork`.
Some networks make a whole clause in one run (:class:`parley.tts.clauses.network.WholeSound`): their first
clauses are small, because there is no audio before the run ends. Others make pieces, and get whole sentences.
"""
