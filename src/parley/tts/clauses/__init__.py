"""Speech from networks that are given a clause at a time.

A text is cut into clauses, and one thread makes them one after the other. Between the pieces of several
requests it chooses the one whose audio runs out first::

    SpeakRequest ──► pronounce ──► splitting ──► ClauseSynthesizer ──► ClauseNetwork (onnxruntime)
                                                     │    ▲ stop: within the network's next operator
                  SpeechChunk ◄──── pauses ◄─────────┘    └── ClauseSound: pieces, and where its words begin

A synthesizer of this kind is one class with the interface :class:`parley.tts.clauses.network.ClauseNetwork`.
Some networks make a clause at once (:class:`parley.tts.clauses.sound.WholeSound`): their first clauses are
small ones, because nothing is heard before it is made. Others make it in pieces, and get whole sentences.
"""
