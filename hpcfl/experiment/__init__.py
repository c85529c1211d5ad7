"""What a user asks for: the experiment file, its keys and limits, sweeps, and the
plugins that it names.
"""
